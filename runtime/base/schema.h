// Configuration by declaration: one table per struct says for every key its type, default, meaning and member. The
// table drives reading (unknown keys, missing keys and wrong values are errors with file:line:column), overlays from
// the environment, and the reference that people read.
//
//   const Schema<HeartbeatConfig>& HeartbeatSchema() {
//     static const auto& schema = *new Schema<HeartbeatConfig>(Schema<HeartbeatConfig>()
//         .Key("interval", DurationValue(), &HeartbeatConfig::interval_ns, "Time between heartbeats."));
//     return schema;
//   }
//   GP_ASSIGN_OR_RETURN(const YamlDocument document, ReadYaml(path));
//   GP_ASSIGN_OR_RETURN(HeartbeatConfig config, HeartbeatSchema().Read(document));
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/schema_values.h"
#include "runtime/base/yaml_reader.h"

namespace geopipe {

enum class Need : uint8_t { kOptional, kRequired };

// One line of the reference.
struct SchemaRow {
  int depth = 0;
  std::string key;  // "- key" where a list's element begins
  std::string type;
  std::string default_text;  // "required" for a required key
  std::string doc;
};

// Aligned columns KEY, TYPE, DEFAULT and DESCRIPTION, keys indented as in the file.
std::string RenderReference(std::span<const SchemaRow> rows);

namespace internal {

std::string JoinPath(std::string_view path, std::string_view key);
absl::Status NotAMap(const YamlDocument& document, const YamlNode& node, std::string_view path);
absl::Status NotAList(const YamlDocument& document, const YamlNode& node, std::string_view path);
absl::Status UnknownKey(const YamlDocument& document, const YamlEntry& entry, std::string_view path,
                        std::span<const std::string> known);
absl::Status MissingKey(const YamlDocument& document, const YamlNode& map, std::string_view path, std::string_view key,
                        std::string_view type);
// A document that holds `text` at `path` and nothing else; errors name `source` as the file.
absl::StatusOr<YamlDocument> DocumentFromText(std::string_view path, std::string_view text, std::string_view source);
// Value of the environment variable <prefix><PATH>, the path in capitals with '_' for '.'; nullptr when not set.
const char* EnvironmentValue(std::string_view prefix, std::string_view path, std::string* name);
void Indent(std::vector<SchemaRow>* rows, int by);

}  // namespace internal

template <class T>
class Schema {
 public:
  // A value in a member.
  template <class M>
  Schema& Key(const std::string& key, ValueType<M> type, M T::*member, const std::string& doc,
              Need need = Need::kOptional) {
    return Key<M>(
        key, std::move(type), [member](const T& value) { return value.*member; },
        [member](T* value, M parsed) { value->*member = std::move(parsed); }, doc, need);
  }

  // A value that is not simply one member.
  template <class M>
  Schema& Key(const std::string& key, ValueType<M> type, std::function<M(const T&)> get, std::function<void(T*, M)> set,
              const std::string& doc, Need need = Need::kOptional) {
    Field field = MakeField(key, type.name, doc, need);
    field.read = [read = std::move(type.read), set = std::move(set)](const YamlDocument& document, const YamlNode& node,
                                                                     const std::string& path, bool /*complete*/,
                                                                     T* value) -> absl::Status {
      absl::StatusOr<M> parsed = read(node);
      if (!parsed.ok()) {
        return document.Error(node.mark, path, std::string(parsed.status().message()));
      }
      set(value, *std::move(parsed));
      return absl::OkStatus();
    };
    field.show = [show = std::move(type.show), get = std::move(get)](const T& value) { return show(get(value)); };
    fields_.push_back(std::move(field));
    return *this;
  }

  // A map that fills a member. `word`, when given, may stand in place of the map and leaves the member as it is.
  template <class M>
  Schema& Map(const std::string& key, Schema<M> schema, M T::*member, const std::string& doc,
              Need need = Need::kOptional, std::string word = "") {
    Field field = MapField(key, schema, doc, need);
    field.type += word.empty() ? "" : " | " + word;
    field.read = [schema = std::move(schema), member, word = std::move(word)](
                     const YamlDocument& document, const YamlNode& node, const std::string& path, bool complete,
                     T* value) {
      const bool is_word = !word.empty() && node.is_scalar() && node.scalar == word;
      return is_word ? absl::OkStatus() : schema.ReadMap(document, node, path, complete, &(value->*member));
    };
    fields_.push_back(std::move(field));
    return *this;
  }

  // A map that fills an optional member: absent in the file, absent in the struct.
  template <class M>
  Schema& Map(const std::string& key, Schema<M> schema, std::optional<M> T::*member, const std::string& doc) {
    Field field = MapField(key, schema, doc, Need::kOptional);
    field.read = [schema = std::move(schema), member](const YamlDocument& document, const YamlNode& node,
                                                      const std::string& path, bool complete, T* value) {
      return schema.ReadMap(document, node, path, complete, &(value->*member).emplace());
    };
    fields_.push_back(std::move(field));
    return *this;
  }

  // A map whose keys fill this same struct.
  Schema& Group(const std::string& key, Schema<T> schema, const std::string& doc, Need need = Need::kOptional) {
    Field field = MapField(key, schema, doc, need);
    field.read = [schema = std::move(schema)](const YamlDocument& document, const YamlNode& node,
                                              const std::string& path, bool complete, T* value) {
      return schema.ReadMap(document, node, path, complete, value);
    };
    fields_.push_back(std::move(field));
    return *this;
  }

  // A list of maps.
  template <class M>
  Schema& List(const std::string& key, Schema<M> schema, std::vector<M> T::*member, const std::string& doc,
               Need need = Need::kOptional) {
    Field field = MakeField(key, "list of maps", doc, need);
    field.rows = [schema] {
      std::vector<SchemaRow> rows = schema.Rows();
      internal::Indent(&rows, 1);
      if (!rows.empty()) {
        rows.front().depth -= 1;
        rows.front().key = "- " + rows.front().key;
      }
      return rows;
    };
    field.read = [schema = std::move(schema), member](const YamlDocument& document, const YamlNode& node,
                                                      const std::string& path, bool /*complete*/,
                                                      T* value) -> absl::Status {
      if (!node.is_list()) {
        return internal::NotAList(document, node, path);
      }
      (value->*member).clear();
      for (size_t i = 0; i < node.items.size(); ++i) {
        GP_RETURN_IF_ERROR(schema.ReadMap(document, node.items[i], path + "[" + std::to_string(i) + "]",
                                          /*complete=*/true, &(value->*member).emplace_back()));
      }
      return absl::OkStatus();
    };
    fields_.push_back(std::move(field));
    return *this;
  }

  // A T with its defaults and what the document gives. Required keys must be there.
  absl::StatusOr<T> Read(const YamlDocument& document) const {
    T value{};
    GP_RETURN_IF_ERROR(ReadMap(document, document.root, "", /*complete=*/true, &value));
    return value;
  }

  // What the document gives, over what `value` holds; required keys may be missing (they may come from elsewhere).
  absl::Status Overlay(const YamlDocument& document, T* value) const {
    return ReadMap(document, document.root, "", /*complete=*/false, value);
  }

  // One key from text, as if a file gave `text` at `path` ("heartbeat.interval"). Errors name `source`.
  absl::Status OverlayText(std::string_view path, std::string_view text, std::string_view source, T* value) const {
    GP_ASSIGN_OR_RETURN(const YamlDocument document, internal::DocumentFromText(path, text, source));
    return Overlay(document, value);
  }

  // Every key that has an environment variable: <prefix>HEARTBEAT_INTERVAL for heartbeat.interval.
  absl::Status OverlayEnvironment(std::string_view prefix, T* value) const {
    for (const std::string& path : KeyPaths()) {
      std::string name;
      const char* text = internal::EnvironmentValue(prefix, path, &name);
      if (text != nullptr) {
        GP_RETURN_IF_ERROR(OverlayText(path, text, "environment variable " + name, value));
      }
    }
    return absl::OkStatus();
  }

  std::string Reference() const { return RenderReference(Rows()); }

  std::vector<SchemaRow> Rows() const {
    const T defaults{};
    std::vector<SchemaRow> rows;
    for (const Field& field : fields_) {
      const std::string default_text = field.need == Need::kRequired ? "required"
                                       : field.show                  ? field.show(defaults)
                                                                     : "";
      rows.push_back({0, field.key, field.type, default_text, field.doc});
      if (field.rows) {
        std::vector<SchemaRow> nested = field.rows();
        internal::Indent(&nested, 1);
        rows.insert(rows.end(), nested.begin(), nested.end());
      }
    }
    return rows;
  }

  // Dotted paths of all keys outside lists.
  std::vector<std::string> KeyPaths() const {
    std::vector<std::string> paths;
    for (const Field& field : fields_) {
      if (!field.keys) {
        paths.push_back(field.key);
        continue;
      }
      for (const std::string& nested : field.keys()) {
        paths.push_back(field.key + "." + nested);
      }
    }
    return paths;
  }

  // For nesting. `complete`: required keys must be there.
  absl::Status ReadMap(const YamlDocument& document, const YamlNode& node, const std::string& path, bool complete,
                       T* value) const {
    if (!node.is_map()) {
      return internal::NotAMap(document, node, path);
    }
    for (const YamlEntry& entry : node.entries) {
      const Field* field = Find(entry.key);
      if (field == nullptr) {
        return internal::UnknownKey(document, entry, path, Keys());
      }
      GP_RETURN_IF_ERROR(field->read(document, entry.value, internal::JoinPath(path, entry.key), complete, value));
    }
    for (const Field& field : fields_) {
      if (complete && field.need == Need::kRequired && node.Find(field.key) == nullptr) {
        return internal::MissingKey(document, node, path, field.key, field.type);
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Field {
    std::string key;
    std::string type;
    std::string doc;
    Need need = Need::kOptional;
    std::function<absl::Status(const YamlDocument&, const YamlNode&, const std::string& path, bool complete, T*)>
        read{};
    std::function<std::string(const T&)> show{};       // values only
    std::function<std::vector<SchemaRow>()> rows{};    // maps and lists only
    std::function<std::vector<std::string>()> keys{};  // maps only
  };

  static Field MakeField(const std::string& key, const std::string& type, const std::string& doc, Need need) {
    Field field;
    field.key = key;
    field.type = type;
    field.doc = doc;
    field.need = need;
    return field;
  }

  template <class M>
  static Field MapField(const std::string& key, const Schema<M>& schema, const std::string& doc, Need need) {
    Field field = MakeField(key, "map", doc, need);
    field.rows = [schema] { return schema.Rows(); };
    field.keys = [schema] { return schema.KeyPaths(); };
    return field;
  }

  const Field* Find(std::string_view key) const {
    for (const Field& field : fields_) {
      if (field.key == key) {
        return &field;
      }
    }
    return nullptr;
  }

  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    keys.reserve(fields_.size());
    for (const Field& field : fields_) {
      keys.push_back(field.key);
    }
    return keys;
  }

  std::vector<Field> fields_;
};

}  // namespace geopipe
