#include "runtime/base/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace geopipe {
namespace {

std::string JoinPath(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

absl::Status NotThat(const YamlDocument& document, const YamlNode& node, std::string_view path,
                     std::string_view wanted) {
  return document.Error(node.mark, path, std::string(WrongKind(node, wanted).message()));
}

absl::Status UnknownKey(const YamlDocument& document, const YamlEntry& entry, std::string_view path,
                        std::span<const std::string> known) {
  const std::string hint = DidYouMean(entry.key, known);
  return document.Error(
      entry.mark, JoinPath(path, entry.key),
      fmt::format("unknown key{}", hint.empty() ? fmt::format("; known here: {}", fmt::join(known, ", ")) : hint));
}

absl::Status MissingKey(const YamlDocument& document, const YamlNode& map, std::string_view path, std::string_view key,
                        std::string_view type) {
  return document.Error(map.mark, JoinPath(path, key), fmt::format("missing; add `{}: <{}>`", key, type));
}

}  // namespace

std::string RenderReference(std::span<const SchemaRow> rows) {
  constexpr std::array<std::string_view, 4> kHeads = {"KEY", "TYPE", "DEFAULT", "DESCRIPTION"};
  const auto key = [](const SchemaRow& row) { return std::string(2 * static_cast<size_t>(row.depth), ' ') + row.key; };
  size_t key_width = kHeads[0].size();
  size_t type_width = kHeads[1].size();
  size_t default_width = kHeads[2].size();
  for (const SchemaRow& row : rows) {
    key_width = std::max(key_width, key(row).size());
    type_width = std::max(type_width, row.type.size());
    default_width = std::max(default_width, row.default_text.size());
  }
  const auto line = [&](std::string_view a, std::string_view b, std::string_view c, std::string_view d) {
    std::string text = fmt::format("{:<{}}  {:<{}}  {:<{}}  {}", a, key_width, b, type_width, c, default_width, d);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string reference = line(kHeads[0], kHeads[1], kHeads[2], kHeads[3]);
  for (const SchemaRow& row : rows) {
    reference += line(key(row), row.type, row.default_text, row.doc);
  }
  return reference;
}

namespace internal {

absl::Status SchemaTable::ReadField(const Field& field, const YamlDocument& document, const YamlNode& node,
                                    const std::string& path, bool complete, void* value) const {
  switch (field.kind) {
    case Field::Kind::kValue: {
      const absl::Status read = field.value.read(node, field.place.In(value));
      return read.ok() ? read : document.Error(node.mark, path, std::string(read.message()));
    }
    case Field::Kind::kMap:
      if (!field.word.empty() && node.is_scalar() && node.scalar == field.word) {
        return absl::OkStatus();
      }
      return field.table->ReadMap(document, node, path, complete, field.place.In(value));
    case Field::Kind::kList:
      if (!node.is_list()) {
        return NotThat(document, node, path, "a list");
      }
      field.clear(field.list.In(value));
      for (size_t i = 0; i < node.items.size(); ++i) {
        GP_RETURN_IF_ERROR(field.table->ReadMap(document, node.items[i], fmt::format("{}[{}]", path, i),
                                                /*complete=*/true, field.place.In(value)));
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status SchemaTable::ReadMap(const YamlDocument& document, const YamlNode& node, const std::string& path,
                                  bool complete, void* value) const {
  if (!node.is_map()) {
    return NotThat(document, node, path, "a map of keys");
  }
  for (const YamlEntry& entry : node.entries) {
    const Field* field = Find(entry.key);
    if (field == nullptr) {
      return UnknownKey(document, entry, path, Keys());
    }
    GP_RETURN_IF_ERROR(ReadField(*field, document, entry.value, JoinPath(path, entry.key), complete, value));
  }
  for (const Field& field : fields_) {
    if (complete && field.need == Need::kRequired && node.Find(field.key) == nullptr) {
      return MissingKey(document, node, path, field.key, field.type);
    }
  }
  return absl::OkStatus();
}

std::vector<SchemaRow> SchemaTable::Rows(const void* defaults) const {
  std::vector<SchemaRow> rows;
  for (const Field& field : fields_) {
    const std::string default_text = field.need == Need::kRequired ? "required"
                                     : field.value.show            ? field.value.show(field.place.In(defaults))
                                                                   : "";
    rows.push_back({0, field.key, field.type, default_text, field.doc});
    if (field.table == nullptr) {
      continue;
    }
    std::vector<SchemaRow> nested;
    field.with_defaults(*field.table, &nested);
    const bool list = field.kind == Field::Kind::kList;
    for (SchemaRow& row : nested) {
      row.depth += list ? 2 : 1;
    }
    if (list && !nested.empty()) {
      nested.front().depth -= 1;
      nested.front().key = fmt::format("- {}", nested.front().key);
    }
    rows.insert(rows.end(), nested.begin(), nested.end());
  }
  return rows;
}

std::vector<std::string> SchemaTable::KeyPaths() const {
  std::vector<std::string> paths;
  for (const Field& field : fields_) {
    if (field.kind != Field::Kind::kMap) {
      paths.push_back(field.key);
      continue;
    }
    for (const std::string& nested : field.table->KeyPaths()) {
      paths.push_back(JoinPath(field.key, nested));
    }
  }
  return paths;
}

const SchemaTable::Field* SchemaTable::Find(std::string_view key) const {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [key](const Field& field) { return field.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

std::vector<std::string> SchemaTable::Keys() const {
  std::vector<std::string> keys;
  keys.reserve(fields_.size());
  for (const Field& field : fields_) {
    keys.push_back(field.key);
  }
  return keys;
}

absl::StatusOr<YamlDocument> DocumentFromText(std::string_view path, std::string_view text, std::string_view source) {
  GP_ASSIGN_OR_RETURN(YamlDocument document, ParseYaml(text, source));
  if (text.empty()) {  // an empty variable is empty text, not an empty map
    document.root.kind = YamlNode::Kind::kScalar;
  }
  document.root.mark = {};
  while (!path.empty()) {
    const size_t dot = path.rfind('.');
    YamlNode parent;
    parent.kind = YamlNode::Kind::kMap;
    parent.entries.push_back(
        {std::string(dot == std::string_view::npos ? path : path.substr(dot + 1)), {}, std::move(document.root)});
    document.root = std::move(parent);
    path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  return document;
}

const char* EnvironmentValue(std::string_view prefix, std::string_view path, std::string* name) {
  *name = prefix;
  for (const char c : path) {
    *name += c == '.' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return std::getenv(name->c_str());
}

}  // namespace internal

}  // namespace geopipe
