#include "runtime/base/config/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/file_format.h"
#include "runtime/base/files.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

YamlMark ToMark(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

int64_t CountNodes(const YamlNode& node) {
  int64_t count = 1;
  for (const YamlNode& item : node.items) {
    count += CountNodes(item);
  }
  for (const YamlEntry& entry : node.entries) {
    count += CountNodes(entry.value);
  }
  return count;
}

// Builds the tree from yaml-cpp's events. yaml-cpp's own tree would silently drop duplicate keys and their places.
// After the first error the remaining events are ignored: the text is bounded, and nothing of ours is thrown through
// yaml-cpp.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(YamlDocument* document) : document_(document) {}

  const absl::Status& status() const { return status_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.mark = ToMark(mark);
    Complete(std::move(node), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.mark = ToMark(mark);
    node.scalar = value;
    node.quoted = tag == "!";
    RejectTag(tag, node.mark);
    Complete(std::move(node), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      Fail(ToMark(mark), "an alias stands inside what it names; write the value out");
      return;
    }
    if (nodes_ + found->second.second > kMaxYamlNodes) {
      Fail(ToMark(mark), TooManyNodes());
      return;
    }
    nodes_ += found->second.second;
    Attach(found->second.first);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapEnd() override { Close(); }

 private:
  // A list or map that is not complete yet.
  struct Level {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // of a map: the key whose value comes next
    std::string key;
    YamlMark key_mark;
  };

  static std::string TooManyNodes() { return fmt::format("more than {} values, the limit for a file", kMaxYamlNodes); }

  void Fail(YamlMark mark, std::string_view message, std::string_view last_key = "") {
    if (status_.ok()) {
      status_ = document_->Error(mark, Path(last_key), message);
    }
  }

  std::string Path(std::string_view last_key) const {
    std::string path;
    const auto add = [&path](std::string_view key) { path += fmt::format("{}{}", path.empty() ? "" : ".", key); };
    for (const Level& level : levels_) {
      if (level.node.is_list()) {
        path += fmt::format("[{}]", level.node.items.size());
      } else if (level.has_key) {
        add(level.key);
      }
    }
    if (!last_key.empty()) {
      add(last_key);
    }
    return path;
  }

  void RejectTag(const std::string& tag, YamlMark mark) {
    if (!tag.empty() && tag != "?" && tag != "!") {
      Fail(mark, fmt::format("the tag {} is not used here; leave it out", tag));
    }
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    RejectTag(tag, ToMark(mark));
    if (!status_.ok()) {
      return;
    }
    Level level;
    level.node.kind = kind;
    level.node.mark = ToMark(mark);
    level.anchor = anchor;
    levels_.push_back(std::move(level));
  }

  void Close() {
    if (!status_.ok()) {
      return;
    }
    Level level = std::move(levels_.back());
    levels_.pop_back();
    Complete(std::move(level.node), level.anchor);
  }

  void Complete(YamlNode node, YAML::anchor_t anchor) {
    if (!status_.ok()) {
      return;
    }
    if (++nodes_ > kMaxYamlNodes) {
      Fail(node.mark, TooManyNodes());
      return;
    }
    if (anchor != 0) {
      const int64_t count = CountNodes(node);
      anchors_[anchor] = {node, count};
      anchored_nodes_ += count;
      if (anchored_nodes_ > kMaxYamlNodes) {
        Fail(node.mark, TooManyNodes());
        return;
      }
    }
    Attach(std::move(node));
  }

  // Gives a complete node to the list or map that is open, as its next item, key or value.
  void Attach(YamlNode node) {
    if (!status_.ok()) {
      return;
    }
    if (levels_.empty()) {
      document_->root = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.is_list()) {
      level.node.items.push_back(std::move(node));
    } else if (level.has_key) {
      if (node.is_null()) {
        node.mark = level.key_mark;  // yaml-cpp places an empty value on the next line; the key's position is meant
      }
      level.node.entries.push_back({std::move(level.key), level.key_mark, std::move(node)});
      level.has_key = false;
    } else if (!node.is_scalar()) {
      Fail(node.mark, fmt::format("a key is {}; keys are plain text", node.Description()));
    } else if (const YamlEntry* first = FindKey(level.node, node.scalar); first != nullptr) {
      Fail(node.mark, fmt::format("given twice, first on line {}; keep one of the two", first->mark.line), node.scalar);
    } else {
      key_index_[{levels_.size(), node.scalar}] = level.node.entries.size();
      level.has_key = true;
      level.key = std::move(node.scalar);
      level.key_mark = node.mark;
    }
  }

  // Does what YamlNode::Find does; recognises a stale index entry, of an earlier map at this depth, by its key's place.
  const YamlEntry* FindKey(const YamlNode& map, const std::string& key) const {
    const auto found = key_index_.find({levels_.size(), key});
    if (found == key_index_.end() || found->second >= map.entries.size() || map.entries[found->second].key != key) {
      return nullptr;
    }
    return &map.entries[found->second];
  }

  YamlDocument* document_;
  absl::Status status_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, std::pair<YamlNode, int64_t>> anchors_;  // with their number of nodes
  std::map<std::pair<size_t, std::string>, size_t> key_index_;      // (depth, key) to position in the open map
  int64_t nodes_ = 0;
  int64_t anchored_nodes_ = 0;
};

// The tab in the indentation of the line, or of the one before it at whose end a reader notices; line 0: there is none.
YamlMark TabIn(std::string_view text, int32_t line) {
  int32_t number = 1;
  YamlMark found;
  while (number <= line) {
    const std::string_view rest = text.substr(0, text.find('\n'));
    const size_t indentation = rest.find_first_not_of(" \t");
    const size_t tab = rest.find('\t');
    if (number + 1 >= line && tab < indentation && indentation != std::string_view::npos) {
      found = {number, static_cast<int32_t>(tab) + 1};
    }
    if (rest.size() == text.size()) {
      break;
    }
    text.remove_prefix(rest.size() + 1);
    ++number;
  }
  return found;
}

// Refuses what is no text at all: of a known format, with a NUL byte, or not UTF-8.
absl::Status CheckText(std::string_view text, const YamlDocument& document) {
  const FileFormat* format = RecogniseFormat(text);
  if (format != nullptr && format->kind != FormatKind::kText) {
    return document.Error(
        {}, "", fmt::format("is {}, not YAML text; {}", format->name, RemedyFor(*format, WantedFile::kConfiguration)));
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const size_t line_begin = text.rfind('\n', nul) + 1;  // 0 where there is none
    const auto line = static_cast<int32_t>(std::count(text.begin(), text.begin() + static_cast<int64_t>(nul), '\n'));
    return document.Error({line + 1, static_cast<int32_t>(nul - line_begin) + 1}, "",
                          "a NUL byte stands here; save the file as UTF-8 text");
  }
  return IsUtf8(text) ? absl::OkStatus() : document.Error({}, "", "not UTF-8 text; save the file as UTF-8");
}

absl::Status ParseInto(std::string_view text, YamlDocument* document) {
  TreeBuilder builder(document);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    GP_RETURN_IF_ERROR(builder.status());
    YamlDocument second{document->file, {}};
    TreeBuilder second_builder(&second);
    if (parser.HandleNextDocument(second_builder)) {
      return document->Error(second.root.mark, "", "a second document begins here; a file holds one");
    }
  } catch (const YAML::DeepRecursion& error) {
    return document->Error(ToMark(error.mark), "", fmt::format("nested deeper than {} levels", error.depth()));
  } catch (const YAML::Exception& error) {
    const YamlMark mark = ToMark(error.mark);
    const YamlMark tab = TabIn(text, mark.line);
    return tab.line > 0 ? document->Error(tab, "", "a tab indents this line; YAML is indented with spaces")
                        : document->Error(mark, "", fmt::format("not valid YAML: {}", error.msg));
  }
  return absl::OkStatus();
}

}  // namespace

const YamlEntry* YamlNode::Find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const YamlEntry& e) { return e.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

std::string YamlNode::Description() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kScalar:
      break;
  }
  constexpr size_t kShown = 60;
  return scalar.size() <= kShown ? fmt::format("'{}'", scalar)
                                 : fmt::format("'{}...'", ToUtf8(std::string_view(scalar).substr(0, kShown)));
}

absl::Status YamlDocument::Error(YamlMark mark, std::string_view path, std::string_view message) const {
  std::string text = file;
  if (mark.line > 0) {
    text += fmt::format(":{}:{}", mark.line, mark.column);
  }
  if (!path.empty()) {
    text += fmt::format(": {}", path);
  }
  return absl::InvalidArgumentError(fmt::format("{}: {}", text, message));
}

YamlMark YamlDocument::Locate(std::string_view path) const {
  const YamlNode* node = &root;
  YamlMark mark = root.mark;
  while (!path.empty()) {
    if (path.front() == '[') {
      size_t index = 0;
      std::from_chars(path.data() + 1, path.data() + path.size(), index);
      if (!node->is_list() || index >= node->items.size()) {
        return mark;
      }
      node = &node->items[index];
      mark = node->mark;
      const size_t end = path.find(']');
      path.remove_prefix(end == std::string_view::npos ? path.size() : end + 1);
    } else {
      const size_t end = std::min(path.find_first_of(".["), path.size());
      const YamlEntry* entry = node->Find(path.substr(0, end));
      if (entry == nullptr) {
        return mark;
      }
      node = &entry->value;
      mark = node->is_scalar() ? node->mark : entry->mark;
      path.remove_prefix(end);
    }
    if (!path.empty() && path.front() == '.') {
      path.remove_prefix(1);
    }
  }
  return mark;
}

absl::StatusOr<YamlDocument> ParseYaml(std::string_view text, std::string_view file) {
  YamlDocument document{std::string(file), {}};
  if (text.size() > kMaxYamlBytes) {
    return document.Error({}, "", fmt::format("larger than {} bytes, the limit for a file", kMaxYamlBytes));
  }
  GP_RETURN_IF_ERROR(CheckText(text, document));
  GP_RETURN_IF_ERROR(ParseInto(text, &document));
  if (document.root.is_null()) {
    document.root.kind = YamlNode::Kind::kMap;
    document.root.mark = {1, 1};
  }
  return document;
}

absl::StatusOr<YamlDocument> ReadYaml(const std::filesystem::path& path) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseYaml(text, path.string());
}

}  // namespace geopipe
