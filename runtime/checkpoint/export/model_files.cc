#include "runtime/checkpoint/export/model_files.h"

#include <array>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int kMaxCheckpoints = 64;  // each of which began from the next

// Names that transformers and mistral-common look for.
constexpr std::array<std::string_view, 11> kNames{"added_tokens.json",  "generation_config.json",
                                                  "merges.txt",         "special_tokens_map.json",
                                                  "spiece.model",       "tekken.json",
                                                  "tokenizer.json",     "tokenizer.model",
                                                  "tokenizer.model.v3", "tokenizer_config.json",
                                                  "vocab.json"};

bool IsChatTemplate(std::string_view name) {
  return name.starts_with("chat_template") && (name.ends_with(".jinja") || name.ends_with(".json"));
}

}  // namespace

absl::StatusOr<std::vector<ModelFile>> ReadModelFiles(const std::string& folder) {
  std::set<std::string> names(kNames.begin(), kNames.end());
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (std::string name = entry->path().filename().string(); IsChatTemplate(name)) {
      names.insert(std::move(name));
    }
  }
  std::vector<ModelFile> files;
  for (const std::string& name : names) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path, error)) {
      GP_ASSIGN_OR_RETURN(std::string content, ReadFile(path, kMaxFileBytes));
      files.push_back({.name = name, .content = std::move(content)});
    }
  }
  return files;
}

std::string ModelFilesFolder(const Checkpoint& checkpoint) {
  std::string folder = checkpoint.manifest().init_from;
  for (int i = 0; i < kMaxCheckpoints && !folder.empty(); ++i) {
    const absl::StatusOr<Checkpoint> before = Checkpoint::Open(folder);
    if (!before.ok()) {
      break;  // a directory of weights, or not there
    }
    folder = before->manifest().init_from;
  }
  return folder;
}

}  // namespace geopipe
