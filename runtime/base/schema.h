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

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

// A value type whose values are anywhere.
struct AnyValueType {
  std::function<absl::Status(const YamlNode&, void* value)> read;
  std::function<std::string(const void* value)> show;
};

template <class M>
AnyValueType AnyValue(ValueType<M> type) {
  AnyValueType any;
  any.read = [read = std::move(type.read)](const YamlNode& node, void* value) -> absl::Status {
    absl::StatusOr<M> parsed = read(node);
    if (!parsed.ok()) {
      return parsed.status();
    }
    *static_cast<M*>(value) = *std::move(parsed);
    return absl::OkStatus();
  };
  any.show = [show = std::move(type.show)](const void* value) { return show(*static_cast<const M*>(value)); };
  return any;
}

// Where a value lies in its struct: a pointer to member and the function that knows its type.
class Place {
 public:
  Place() = default;  // the struct itself
  template <class Member>
  Place(Member member, void* (*find)(const Place& place, void* value)) : find_(find) {
    static_assert(std::is_trivially_copyable_v<Member> && sizeof(Member) <= sizeof(member_));
    std::memcpy(member_.data(), &member, sizeof member);
  }

  void* In(void* value) const { return find_ == nullptr ? value : find_(*this, value); }
  // For places that are there in every struct, which finding does not change.
  const void* In(const void* value) const { return In(const_cast<void*>(value)); }

  template <class Member>
  Member As() const {
    Member member;
    std::memcpy(&member, member_.data(), sizeof member);
    return member;
  }

 private:
  alignas(std::max_align_t) std::array<std::byte, 16> member_{};
  void* (*find_)(const Place& place, void* value) = nullptr;
};

template <class T, class M>
Place PlaceOf(M T::*member) {
  return {member,
          [](const Place& place, void* value) -> void* { return &(static_cast<T*>(value)->*place.As<M T::*>()); }};
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
    std::string word = {};                // maps: may stand in place of the map
    Place list = {};                      // lists only
    void (*clear)(void* list) = nullptr;  // lists only
  };

  void Add(Field field) { fields_.push_back(std::move(field)); }
  absl::Status ReadMap(const YamlDocument& document, const YamlNode& node, const std::string& path, bool complete,
                       void* value) const;
  std::vector<SchemaRow> Rows(const void* defaults) const;
  std::vector<std::string> KeyPaths() const;

 private:
  absl::Status ReadField(const Field& field, const YamlDocument& document, const YamlNode& node,
                         const std::string& path, bool complete, void* value) const;
  const Field* Find(std::string_view key) const;
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
    Field field = MakeField(Field::Kind::kValue, key, type.name, doc, need);
    field.place = internal::PlaceOf(member);
    field.value = internal::AnyValue(std::move(type));
    return Add(std::move(field));
  }

  // A value that is not simply one member.
  template <class M>
  Schema& Key(const std::string& key, ValueType<M> type, std::function<M(const T&)> get, std::function<void(T*, M)> set,
              const std::string& doc, Need need = Need::kOptional) {
    Field field = MakeField(Field::Kind::kValue, key, type.name, doc, need);
    field.value.read = [read = std::move(type.read), set = std::move(set)](const YamlNode& node,
                                                                           void* value) -> absl::Status {
      absl::StatusOr<M> parsed = read(node);
      if (parsed.ok()) {
        set(static_cast<T*>(value), *std::move(parsed));
      }
      return parsed.status();
    };
    field.value.show = [show = std::move(type.show), get = std::move(get)](const void* value) {
      return show(get(*static_cast<const T*>(value)));
    };
    return Add(std::move(field));
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

  // A map that fills an optional member: absent in the file, absent in the struct.
  template <class M>
  Schema& Map(const std::string& key, Schema<M> schema, std::optional<M> T::*member, const std::string& doc) {
    Field field = MapField(key, std::move(schema), doc, Need::kOptional);
    field.place = {member, [](const internal::Place& place, void* value) -> void* {
                     return &(static_cast<T*>(value)->*place.As<std::optional<M> T::*>()).emplace();
                   }};
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
    field.place = {member, [](const internal::Place& place, void* value) -> void* {
                     return &(static_cast<T*>(value)->*place.As<std::vector<M> T::*>()).emplace_back();
                   }};
    field.list = internal::PlaceOf(member);
    field.clear = [](void* list) { static_cast<std::vector<M>*>(list)->clear(); };
    return Add(std::move(field));
  }

  // A T with its defaults and what the document gives. Required keys must be there.
  absl::StatusOr<T> Read(const YamlDocument& document) const {
    T value{};
    GP_RETURN_IF_ERROR(table_.ReadMap(document, document.root, "", /*complete=*/true, &value));
    return value;
  }

  // What the document gives, over what `value` holds; required keys may be missing (they may come from elsewhere).
  absl::Status Overlay(const YamlDocument& document, T* value) const {
    return table_.ReadMap(document, document.root, "", /*complete=*/false, value);
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
    return table_.Rows(&defaults);
  }

  // Dotted paths of all keys outside lists.
  std::vector<std::string> KeyPaths() const { return table_.KeyPaths(); }

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
