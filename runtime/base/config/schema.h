// Configuration by declaration: one table per struct says for every key its type, range, default, meaning and member.
// The table drives reading (unknown keys, missing keys and wrong values are errors with file:line:column), overlays
// from the environment, writing, the reference that people read, and random values for tests.
//
//   const Schema<Heartbeat>& HeartbeatSchema() {
//     static const auto& schema = *new Schema<Heartbeat>(Schema<Heartbeat>()
//         .Key("interval", AtLeast<int64_t>(1, DurationValue()), &Heartbeat::interval_ns, "Between heartbeats."));
//     return schema;
//   }
//   GP_ASSIGN_OR_RETURN(const YamlDocument document, ReadYaml(path));
//   GP_ASSIGN_OR_RETURN(Heartbeat heartbeat, HeartbeatSchema().Read(document));
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/config/schema_values.h"
#include "runtime/base/config/yaml_reader.h"
#include "runtime/base/wrap.h"

namespace geopipe {

enum class Need : uint8_t { kOptional, kRequired };

// One line of the reference.
struct SchemaRow {
  int depth = 0;
  std::string key;  // "- key" where a list's element begins
  std::string type;
  std::string range;         // of the values, beyond the type; may be empty
  std::string default_text;  // "required" for a required key
  std::string doc;
};

// Lays the rows out in columns KEY, TYPE, RANGE, DEFAULT and DESCRIPTION, with keys indented as in the file. If a
// description would get less than 40 columns, the columns are KEY and VALUE, with the description below the value.
std::string RenderReference(std::span<const SchemaRow> rows, int32_t columns = kAnyColumns);

// A row with what lies below it.
struct SchemaBranch {
  std::string path;  // dotted
  std::vector<SchemaRow> rows;
};

// The branch of every key whose dotted path is `name` or ends with it ("search.seed"), in the order of the rows.
std::vector<SchemaBranch> FindBranches(std::span<const SchemaRow> rows, std::string_view name);
// Lists all names by which FindBranches finds something.
std::vector<std::string> BranchNames(std::span<const SchemaRow> rows);

// Reference of a kind of file, for people.
struct FileReference {
  std::string about;
  std::vector<SchemaRow> rows;
  std::string notes = {};  // behind the keys

  std::string Text(int32_t columns = kAnyColumns) const;
};

namespace internal {

// A value type whose values may lie anywhere.
struct AnyValueType {
  std::function<absl::Status(const YamlNode&, void* value)> read;
  std::function<std::string(const void* value)> show;
  std::function<std::string(const Draw&)> sample;
  std::string range;
  std::optional<std::string> default_text;
};

// A value type of values that `get` and `set` reach.
template <class M, class Get, class Set>
AnyValueType AnyValue(ValueType<M> type, Get get, Set set) {
  AnyValueType any;
  any.read = [read = std::move(type.read), set](const YamlNode& node, void* value) -> absl::Status {
    absl::StatusOr<M> parsed = read(node);
    if (!parsed.ok()) {
      return parsed.status();
    }
    set(value, *std::move(parsed));
    return absl::OkStatus();
  };
  any.show = [show = std::move(type.show), get](const void* value) { return show(get(value)); };
  any.sample = std::move(type.sample);
  any.range = std::move(type.range);
  any.default_text = std::move(type.default_text);
  return any;
}

// Finds a value in its struct; empty: the value is the struct itself.
using Place = std::function<void*(void* value)>;

template <class T, class M>
Place PlaceOf(M T::*member) {
  return [member](void* value) -> void* { return &(static_cast<T*>(value)->*member); };
}

// Schema without its struct: all that can be compiled once.
class SchemaTable {
 public:
  struct Field {
    enum class Kind : uint8_t { kValue, kMap, kList };
    Kind kind = Kind::kValue;
    std::string key;
    std::string type;
    std::string doc;
    Need need = Need::kOptional;
    Place place = {};                               // of the value, of the struct that a map fills, of a list's end
    AnyValueType value = {};                        // values only
    std::shared_ptr<const SchemaTable> table = {};  // maps and lists: of the struct that is filled
    void (*with_defaults)(const SchemaTable& table, std::vector<SchemaRow>* rows) = nullptr;  // the same
    std::string word = {};                            // maps: may stand in place of the map
    bool absent_by_default = false;                   // maps: fill an optional member
    bool (*is_left_out)(const void* part) = nullptr;  // maps: a part that is not written, since it cannot be read
    std::string inert = {};                           // why the key does nothing yet; empty: it does something
    std::function<void(void* value)> clear = {};      // lists only
    std::function<const void*(const void* value, size_t index)> element = {};  // lists only: null behind the last
  };

  void Add(Field field) { fields_.push_back(std::move(field)); }
  // Adds the fields of `table`, none of which is a list, whose struct lies at `place`.
  void Embed(const SchemaTable& table, const Place& place);
  void MarkInert(std::string why) { fields_.back().inert = std::move(why); }
  void MarkLeftOut(bool (*is_left_out)(const void* part)) { fields_.back().is_left_out = is_left_out; }

  absl::Status ReadMap(const YamlDocument& document, const YamlNode& node, const std::string& path, bool complete,
                       void* value) const;
  absl::Status RefuseInert(const YamlDocument& document, const YamlNode& node, const std::string& path,
                           const std::string& why) const;
  std::string Write(const void* value, const void* defaults, size_t indent) const;
  std::vector<SchemaRow> Rows(const void* defaults) const;
  std::vector<std::string> KeyPaths() const;
  // REQUIRES: `path` is one of KeyPaths.
  std::string Show(std::string_view path, const void* value) const;
  std::string Sample(std::string_view path, const Draw& draw) const;

 private:
  absl::Status ReadField(const Field& field, const YamlDocument& document, const YamlNode& node,
                         const std::string& path, bool complete, void* value) const;
  const Field* Find(std::string_view key) const;
  // Returns the field at `path`, and sets `value` to the struct that holds it.
  const Field& FindPath(std::string_view path, const void** value) const;
  std::vector<std::string> Keys() const;

  std::vector<Field> fields_;
};

// A document that holds `text` at `path` and nothing else; errors name `source` as the file.
absl::StatusOr<YamlDocument> DocumentFromText(std::string_view path, std::string_view text, std::string_view source);
// Value of the environment variable <prefix><PATH>, the path in capitals with '_' for '.'; nullptr when not set.
const char* EnvironmentValue(std::string_view prefix, std::string_view path, std::string* name);

}  // namespace internal

template <class T>
class Schema {
 public:
  // A value in a member.
  template <class M>
  Schema& Key(const std::string& key, ValueType<M> type, M T::*member, const std::string& doc,
              Need need = Need::kOptional) {
    return Key<M>(
        key, std::move(type), [member](const T& value) -> const M& { return value.*member; },
        [member](T* value, M given) { value->*member = std::move(given); }, doc, need);
  }

  // A value that is not simply one member.
  template <class M, class Get, class Set>
  Schema& Key(const std::string& key, ValueType<M> type, Get get, Set set, const std::string& doc,
              Need need = Need::kOptional) {
    Field field = MakeField(Field::Kind::kValue, key, type.name, doc, need);
    field.value = internal::AnyValue(
        std::move(type), [get](const void* value) -> decltype(auto) { return get(*static_cast<const T*>(value)); },
        [set](void* value, M given) { set(static_cast<T*>(value), std::move(given)); });
    return Add(std::move(field));
  }

  // The keys of a member's own schema, as if they were declared here. REQUIRES: none is a list.
  template <class M>
  Schema& Embed(const Schema<M>& schema, M T::*member) {
    table_.Embed(schema.table_, internal::PlaceOf(member));
    return *this;
  }

  // Marks the key declared last as one that does nothing yet: it is described and read, and RefuseInert refuses it.
  Schema& Inert(std::string why) {
    table_.MarkInert(std::move(why));
    return *this;
  }

  // A map that fills a member. `word`, when given, may stand in place of the map and leaves the member as it is.
  template <class M>
  Schema& Map(const std::string& key, Schema<M> schema, M T::*member, const std::string& doc,
              Need need = Need::kOptional, std::string word = "") {
    Field field = MapField(key, std::move(schema), doc, need);
    field.type += word.empty() ? "" : " | " + word;
    field.word = std::move(word);
    field.place = internal::PlaceOf(member);
    return Add(std::move(field));
  }

  // Leaves the map declared last out of what is written where `is_left_out` holds of its member (of type M): it has no
  // value for a key that the map requires, as if the file did not give the map.
  template <class M, bool (*is_left_out)(const M&)>
  Schema& LeftOutWhere() {
    table_.MarkLeftOut([](const void* part) { return is_left_out(*static_cast<const M*>(part)); });
    return *this;
  }

  // A map that fills an optional member: absent in the file, absent in the struct.
  template <class M>
  Schema& Map(const std::string& key, Schema<M> schema, std::optional<M> T::*member, const std::string& doc) {
    Field field = MapField(key, std::move(schema), doc, Need::kOptional);
    field.absent_by_default = true;
    field.place = [member](void* value) -> void* { return &(static_cast<T*>(value)->*member).emplace(); };
    return Add(std::move(field));
  }

  // A map whose keys fill this same struct.
  Schema& Group(const std::string& key, Schema<T> schema, const std::string& doc, Need need = Need::kOptional) {
    return Add(MapField(key, std::move(schema), doc, need));
  }

  // A list of maps.
  template <class M>
  Schema& List(const std::string& key, Schema<M> schema, std::vector<M> T::*member, const std::string& doc,
               Need need = Need::kOptional) {
    Field field = MapField(key, std::move(schema), doc, need);
    field.kind = Field::Kind::kList;
    field.type = "list of maps";
    field.place = [member](void* value) -> void* { return &(static_cast<T*>(value)->*member).emplace_back(); };
    field.clear = [member](void* value) { (static_cast<T*>(value)->*member).clear(); };
    field.element = [member](const void* value, size_t index) -> const void* {
      const std::vector<M>& list = static_cast<const T*>(value)->*member;
      return index < list.size() ? &list[index] : nullptr;
    };
    return Add(std::move(field));
  }

  // Returns a T with its defaults and the values that the document gives. Required keys must be present.
  absl::StatusOr<T> Read(const YamlDocument& document) const {
    T value{};
    GP_RETURN_IF_ERROR(table_.ReadMap(document, document.root, "", /*complete=*/true, &value));
    return value;
  }

  // Writes the values that the document gives over those of `value`. Required keys may be missing (they may come from
  // elsewhere).
  absl::Status Overlay(const YamlDocument& document, T* value) const {
    return table_.ReadMap(document, document.root, "", /*complete=*/false, value);
  }

  // One key from text, as if a file gave `text` at `path` ("heartbeat.interval"). Errors name `source`.
  absl::Status OverlayText(std::string_view path, std::string_view text, std::string_view source, T* value) const {
    GP_ASSIGN_OR_RETURN(const YamlDocument document, internal::DocumentFromText(path, text, source));
    return Overlay(document, value);
  }

  // Refuses values at inert keys; the error names the first with its value and why.
  absl::Status RefuseInert(const YamlDocument& document) const {
    return table_.RefuseInert(document, document.root, "", "");
  }

  // YAML from which Read makes an equal value: every key that shows something, but inert ones that hold their defaults.
  std::string Write(const T& value) const {
    const T defaults{};
    return table_.Write(&value, &defaults, 0);
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

  std::string Reference(int32_t columns = kAnyColumns) const { return RenderReference(Rows(), columns); }

  std::vector<SchemaRow> Rows() const {
    const T defaults{};
    return table_.Rows(&defaults);
  }

  // Dotted paths of all keys outside lists.
  std::vector<std::string> KeyPaths() const { return table_.KeyPaths(); }

  // The value of one of KeyPaths, as a file would write it.
  std::string Show(std::string_view path, const T& value) const { return table_.Show(path, &value); }

  // Random text that a file may give at one of KeyPaths.
  std::string Sample(std::string_view path, const Draw& draw) const {
    T scratch{};
    std::string text;
    do {
      text = table_.Sample(path, draw);
    } while (!OverlayText(path, text, "sample", &scratch).ok());
    return text;
  }

 private:
  template <class>
  friend class Schema;
  using Field = internal::SchemaTable::Field;

  static Field MakeField(typename Field::Kind kind, const std::string& key, const std::string& type,
                         const std::string& doc, Need need) {
    return {.kind = kind, .key = key, .type = type, .doc = doc, .need = need};
  }

  template <class M>
  static Field MapField(const std::string& key, Schema<M> schema, const std::string& doc, Need need) {
    Field field = MakeField(Field::Kind::kMap, key, "map", doc, need);
    field.table = std::make_shared<const internal::SchemaTable>(std::move(schema.table_));
    field.with_defaults = [](const internal::SchemaTable& table, std::vector<SchemaRow>* rows) {
      const M defaults{};
      *rows = table.Rows(&defaults);
    };
    return field;
  }

  Schema& Add(Field field) {
    table_.Add(std::move(field));
    return *this;
  }

  internal::SchemaTable table_;
};

}  // namespace geopipe
