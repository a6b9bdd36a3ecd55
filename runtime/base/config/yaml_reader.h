// YAML as a tree of our own in which every key and value knows its place in the file. Stricter than YAML: one document,
// keys are plain text and given once, no tags, bounded size, depth and number of nodes (an alias counts as a copy).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

inline constexpr size_t kMaxYamlBytes = size_t{16} << 20;
inline constexpr int64_t kMaxYamlNodes = int64_t{1} << 20;

// Both from 1. Line 0: the value does not come from a file.
struct YamlMark {
  int32_t line = 0;
  int32_t column = 0;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;  // "5" is text, 5 is a number
  YamlMark mark;
  std::vector<YamlNode> items;     // kList
  std::vector<YamlEntry> entries;  // kMap, in the order of the file

  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  bool is_null() const { return kind == Kind::kNull; }
  // nullptr when this is not a map or has no such key.
  const YamlEntry* Find(std::string_view key) const;
  // "a map", "a list", "nothing", or the scalar in quotes.
  std::string Description() const;
};

struct YamlEntry {
  std::string key;
  YamlMark mark;
  YamlNode value;
};

struct YamlDocument {
  std::string file;  // as errors name it
  YamlNode root;

  // "file:line:column: path: message"; without line and column when the mark has none, without path when it is empty.
  absl::Status Error(YamlMark mark, std::string_view path, std::string_view message) const;

  // The same about the value at `path`, whose place is looked up.
  absl::Status Error(std::string_view path, std::string_view message) const {
    return Error(Locate(path), path, message);
  }

  // Place of the value at `path` ("spec.training.betas[0]"), or of its nearest ancestor that the file gives.
  YamlMark Locate(std::string_view path) const;
};

// InvalidArgument has the form of YamlDocument::Error. An empty document is an empty map.
absl::StatusOr<YamlDocument> ParseYaml(std::string_view text, std::string_view file);

// Errors of ReadFile and of ParseYaml; the file is named as `path` says.
absl::StatusOr<YamlDocument> ReadYaml(const std::filesystem::path& path);

}  // namespace geopipe
