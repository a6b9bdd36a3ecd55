#include "runtime/base/config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

#include "optimizer/base/check.h"
#include "runtime/base/table.h"

namespace geopipe {
namespace {

std::string JoinPath(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

absl::Status NotThat(const YamlDocument& document, const YamlNode& node, std::string_view path,
                     std::string_view wanted) {
  return document.Error(node.mark, path, std::string(WrongKind(node, wanted).message()));
}

// An error of a value, or of the entry of a list that it begins with ("[1]: ...").
absl::Status ErrorAt(const YamlDocument& document, const YamlNode& node, const std::string& path,
                     std::string_view message) {
  size_t index = 0;
  const size_t end = message.find("]: ");
  if (!message.starts_with('[') || end == std::string_view::npos ||
      std::from_chars(message.data() + 1, message.data() + end, index).ptr != message.data() + end ||
      index >= node.items.size()) {
    return document.Error(node.mark, path, message);
  }
  return ErrorAt(document, node.items[index], fmt::format("{}[{}]", path, index), message.substr(end + 3));
}

absl::Status UnknownKey(const YamlDocument& document, const YamlEntry& entry, std::string_view path,
                        std::span<const std::string> known) {
  const std::string hint = DidYouMean(entry.key, known);
  return document.Error(
      entry.mark, JoinPath(path, entry.key),
      fmt::format("unknown key{}", hint.empty() ? fmt::format("; known here: {}", fmt::join(known, ", ")) : hint));
}

absl::Status MissingKey(const YamlDocument& document, const YamlNode& map, std::string_view path, std::string_view key,
                        std::string_view value) {
  return document.Error(map.mark, JoinPath(path, key), fmt::format("missing; add `{}: {}`", key, value));
}

}  // namespace

namespace {

std::string IndentedKey(const SchemaRow& row) { return std::string(2 * static_cast<size_t>(row.depth), ' ') + row.key; }

// "integer, from 0 to 1024; default 8".
std::string ValueText(const SchemaRow& row) {
  std::string text = row.type;
  text += row.range.empty() ? "" : fmt::format(", {}", row.range);
  return row.default_text.empty()         ? text
         : row.default_text == "required" ? text + "; required"
                                          : fmt::format("{}; default {}", text, row.default_text);
}

// Depth of a key below others: the first of a list's element is written further left than its siblings, for its dash,
// but hangs as deep.
int DepthOf(const SchemaRow& row) { return row.depth + (row.key.starts_with("- ") ? 1 : 0); }

std::vector<std::string> PathsOf(std::span<const SchemaRow> rows) {
  std::vector<std::string> paths;
  std::vector<std::pair<int, std::string>> above;
  for (const SchemaRow& row : rows) {
    const int depth = DepthOf(row);
    while (!above.empty() && above.back().first >= depth) {
      above.pop_back();
    }
    const std::string_view key = std::string_view(row.key).substr(row.key.starts_with("- ") ? 2 : 0);
    paths.push_back(JoinPath(above.empty() ? "" : above.back().second, key));
    above.emplace_back(depth, paths.back());
  }
  return paths;
}

}  // namespace

std::string RenderReference(std::span<const SchemaRow> rows, int32_t columns) {
  constexpr int32_t kDescription = 40;  // columns
  const bool ranged = std::ranges::any_of(rows, [](const SchemaRow& row) { return !row.range.empty(); });
  std::vector<std::string> headings{"KEY", "TYPE", "DEFAULT", "DESCRIPTION"};
  if (ranged) {
    headings.insert(headings.begin() + 2, "RANGE");
  }
  std::vector<int32_t> widths(headings.size() - 1);
  Table table(std::move(headings));
  Table narrow({"KEY", "VALUE"});
  for (const SchemaRow& row : rows) {
    std::vector<std::string> cells{IndentedKey(row), row.type, row.default_text, row.doc};
    if (ranged) {
      cells.insert(cells.begin() + 2, row.range);
    }
    for (size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(cells[i]) + 2);
    }
    table.AddRow(std::move(cells));
    narrow.AddRow({IndentedKey(row), ValueText(row)});
    narrow.AddRow({"", row.doc});
  }
  const int32_t others = std::accumulate(widths.begin(), widths.end(), 0);
  return others > columns - kDescription ? narrow.Render(columns) : table.Render(columns);
}

std::vector<SchemaBranch> FindBranches(std::span<const SchemaRow> rows, std::string_view name) {
  const std::vector<std::string> paths = PathsOf(rows);
  const std::string suffix = fmt::format(".{}", name);
  std::vector<SchemaBranch> branches;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (paths[i] != name && !paths[i].ends_with(suffix)) {
      continue;
    }
    SchemaBranch branch{paths[i], {rows[i]}};
    for (size_t below = i + 1; below < rows.size() && DepthOf(rows[below]) > DepthOf(rows[i]); ++below) {
      branch.rows.push_back(rows[below]);
    }
    for (SchemaRow& row : branch.rows) {
      row.depth -= rows[i].depth;
    }
    branches.push_back(std::move(branch));
  }
  return branches;
}

std::vector<std::string> BranchNames(std::span<const SchemaRow> rows) {
  std::vector<std::string> names;
  for (const std::string& path : PathsOf(rows)) {
    for (size_t begin = 0; begin != std::string::npos;) {
      names.push_back(path.substr(begin));
      const size_t dot = path.find('.', begin);
      begin = dot == std::string::npos ? dot : dot + 1;
    }
  }
  return names;
}

std::string FileReference::Text(int32_t columns) const {
  return fmt::format("{}\n\n{}{}", WrapLines(about, columns), RenderReference(rows, columns),
                     WrapLines(notes, columns));
}

namespace internal {
namespace {

// True when one word is all that the field takes.
bool IsOneWord(const SchemaTable::Field& field) {
  return field.kind == SchemaTable::Field::Kind::kValue && field.value.sample != nullptr &&
         field.value.sample([] { return uint64_t{0}; }) == field.type;
}

void* In(const Place& place, void* value) { return place ? place(value) : value; }
// REQUIRES: the place is in no list element or optional map, where finding changes the value.
const void* In(const Place& place, const void* value) { return In(place, const_cast<void*>(value)); }

}  // namespace

void SchemaTable::Embed(const SchemaTable& table, const Place& place) {
  for (Field field : table.fields_) {
    GP_CHECK(field.kind != Field::Kind::kList, "{} is a list", field.key);
    field.place =
        field.place ? [outer = place, inner = field.place](void* value) { return inner(outer(value)); } : place;
    Add(std::move(field));
  }
}

absl::Status SchemaTable::ReadField(const Field& field, const YamlDocument& document, const YamlNode& node,
                                    const std::string& path, bool complete, void* value) const {
  switch (field.kind) {
    case Field::Kind::kValue: {
      const absl::Status read = field.value.read(node, In(field.place, value));
      return read.ok() ? read : ErrorAt(document, node, path, std::string(read.message()));
    }
    case Field::Kind::kMap:
      if (!field.word.empty() && node.is_scalar() && node.scalar == field.word) {
        return absl::OkStatus();
      }
      return field.table->ReadMap(document, node, path, complete, In(field.place, value));
    case Field::Kind::kList:
      if (!node.is_list()) {
        return NotThat(document, node, path, "a list");
      }
      field.clear(value);
      for (size_t i = 0; i < node.items.size(); ++i) {
        GP_RETURN_IF_ERROR(field.table->ReadMap(document, node.items[i], fmt::format("{}[{}]", path, i),
                                                /*complete=*/true, In(field.place, value)));
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
      return MissingKey(document, node, path, field.key, IsOneWord(field) ? field.type : "<" + field.type + ">");
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaTable::RefuseInert(const YamlDocument& document, const YamlNode& node, const std::string& path,
                                      const std::string& why) const {
  for (const YamlEntry& entry : node.entries) {
    const Field* field = Find(entry.key);
    if (field == nullptr) {
      continue;
    }
    const std::string& reason = field->inert.empty() ? why : field->inert;
    if (field->kind == Field::Kind::kMap) {
      GP_RETURN_IF_ERROR(field->table->RefuseInert(document, entry.value, JoinPath(path, entry.key), reason));
    } else if (!reason.empty()) {
      return document.Error(entry.value.mark, JoinPath(path, entry.key),
                            fmt::format("is {}, but {}; leave it out", entry.value.Description(), reason));
    }
  }
  return absl::OkStatus();
}

std::string SchemaTable::Write(const void* value, const void* defaults, size_t indent) const {
  const std::string margin(indent, ' ');
  std::string text;
  for (const Field& field : fields_) {
    GP_CHECK(!field.absent_by_default, "{} is optional; such maps are not written", field.key);
    if (field.kind == Field::Kind::kValue) {
      const std::string shown = field.value.show(In(field.place, value));
      text += shown.empty() ? "" : fmt::format("{}{}: {}\n", margin, field.key, shown);
      continue;
    }
    std::string nested;
    if (field.kind == Field::Kind::kMap) {
      const void* part = In(field.place, value);
      const void* default_part = In(field.place, defaults);
      if (field.is_left_out != nullptr && field.is_left_out(part)) {
        continue;
      }
      nested = field.table->Write(part, default_part, indent + 2);
      if (!field.inert.empty() && nested == field.table->Write(default_part, default_part, indent + 2)) {
        continue;
      }
    }
    for (size_t i = 0; field.element && field.element(value, i) != nullptr; ++i) {
      const void* element = field.element(value, i);
      std::string lines = field.table->Write(element, element, indent + 4);
      lines[indent + 2] = '-';
      nested += lines;
    }
    text +=
        fmt::format("{}{}:{}", margin, field.key, nested.empty() ? (field.element ? " []\n" : " {}\n") : "\n" + nested);
  }
  return text;
}

std::vector<SchemaRow> SchemaTable::Rows(const void* defaults) const {
  std::vector<SchemaRow> rows;
  for (const Field& field : fields_) {
    std::string default_text = field.need == Need::kRequired ? "required"
                               : field.value.default_text    ? *field.value.default_text
                               : field.value.show            ? field.value.show(In(field.place, defaults))
                                                             : "";
    default_text = default_text == "\"\"" ? "" : default_text;
    const std::string doc = field.inert.empty() ? field.doc : fmt::format("{} Not yet: {}.", field.doc, field.inert);
    rows.push_back({0, field.key, field.type, field.value.range, default_text, doc});
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

std::string SchemaTable::Show(std::string_view path, const void* value) const {
  const Field& field = FindPath(path, &value);
  return field.value.show(In(field.place, value));
}

std::string SchemaTable::Sample(std::string_view path, const Draw& draw) const {
  const void* ignored = nullptr;
  return FindPath(path, &ignored).value.sample(draw);
}

const SchemaTable::Field& SchemaTable::FindPath(std::string_view path, const void** value) const {
  const size_t dot = path.find('.');
  const Field* field = Find(path.substr(0, dot));
  GP_CHECK(field != nullptr, "no key {}", path);
  if (dot == std::string_view::npos) {
    GP_CHECK(field->kind == Field::Kind::kValue, "{} is not a value", path);
    return *field;
  }
  *value = *value == nullptr ? nullptr : In(field->place, *value);
  return field->table->FindPath(path.substr(dot + 1), value);
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
