// A struct's fields are listed once, and travel both ways by that list:
//
//   template <class Archive>
//   void Fields(Archive& archive, typename Archive::template Of<DevicePlace>& place) {
//     archive("node", place.node, Range(0, kMaxInt32));
//     archive("device", place.device, Range(0, kMaxDevicesPerNode - 1));
//   }
//
// A Writer puts them into the message's fields of these names; a Reader takes them from there if they are what they
// must be. Values are numbers, flags, texts, enumerators, structs with such a list, and vectors and optionals of these.
// A name that the message does not have ends the process. Private to proto/wire.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <concepts>
#include <optional>
#include <type_traits>

#include "proto/wire/fields.h"

namespace geopipe::wire {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Rules for values.
inline auto Range(int64_t min, int64_t max) {
  return [=](std::string_view field, int64_t value) { return CheckRange(field, value, min, max); };
}
inline auto Duration() { return Range(0, kMaxDurationNs); }
inline auto Bytes() { return Range(0, kMaxBytes); }
inline auto Finite(double min) {
  return [=](std::string_view field, double value) { return CheckFinite(field, value, min); };
}
inline auto Text(size_t max_bytes) {
  return [=](std::string_view field, std::string_view text) { return CheckText(field, text, max_bytes); };
}
struct Anything {
  absl::Status operator()(std::string_view, const auto&) const { return absl::OkStatus(); }
};
// Rule of a list: it has at most `max_count` elements, each of which obeys `rule`.
template <class Rule = Anything>
struct Many {
  explicit Many(int64_t max_count, Rule rule = {}) : max_count(max_count), rule(std::move(rule)) {}

  int64_t max_count;
  Rule rule;
};

// Enumerators are numbered from 0, and on the wire from 1, where 0 stands for no value.
template <class Enum>
inline constexpr int kFirstOnWire = 1;

inline const FieldDescriptor* FieldNamed(const Message& message, const std::string& name) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  GP_CHECK(field != nullptr, "{} has no field {}", message.GetDescriptor()->name(), name);
  return field;
}

class Writer {
 public:
  template <class T>
  using Of = const T;

  explicit Writer(Message& message) : message_(message), to_(*message.GetReflection()) {}

  template <class V>
  void operator()(const std::string& name, const V& value, const auto&... /*rule*/) {
    Put(FieldNamed(message_, name), value);
  }
  void Optional(const std::string& name, const auto& value) { (*this)(name, value); }
  void Check(const auto& /*valid*/) {}

 private:
  template <class V>
  void Put(const FieldDescriptor* field, const V& value) {
    if constexpr (std::same_as<V, bool>) {
      to_.SetBool(&message_, field, value);
    } else if constexpr (std::same_as<V, int32_t>) {
      to_.SetInt32(&message_, field, value);
    } else if constexpr (std::same_as<V, int64_t>) {
      to_.SetInt64(&message_, field, value);
    } else if constexpr (std::same_as<V, double>) {
      to_.SetDouble(&message_, field, value);
    } else if constexpr (std::same_as<V, std::string>) {
      to_.SetString(&message_, field, value);
    } else if constexpr (std::is_enum_v<V>) {
      to_.SetEnumValue(&message_, field, static_cast<int>(value) + kFirstOnWire<V>);
    } else {
      PutStruct(to_.MutableMessage(&message_, field), value);
    }
  }
  template <class V>
  void Put(const FieldDescriptor* field, const std::optional<V>& value) {
    if (value.has_value()) {
      Put(field, *value);
    }
  }
  template <class V>
  void Put(const FieldDescriptor* field, const std::vector<V>& values) {
    for (const V& value : values) {
      if constexpr (std::is_arithmetic_v<V>) {
        to_.GetMutableRepeatedFieldRef<V>(&message_, field).Add(value);
      } else {
        PutStruct(to_.AddMessage(&message_, field), value);
      }
    }
  }
  static void PutStruct(Message* message, const auto& value) {
    Writer writer(*message);
    Fields(writer, value);
  }

  Message& message_;
  const google::protobuf::Reflection& to_;
};

// Reads until the first error, which begins with the path of its field.
class Reader {
 public:
  template <class T>
  using Of = T;

  explicit Reader(const Message& message) : message_(message), from_(*message.GetReflection()) {}

  const absl::Status& status() const { return status_; }

  template <class V, class Rule = Anything>
  void operator()(const std::string& name, V& value, const Rule& rule = {}) {
    if (status_.ok()) {
      status_ = Take(FieldNamed(message_, name), value, rule);
    }
  }
  // Reads a field; one that the message lacks leaves the value as it was.
  void Optional(const std::string& name, auto& value) {
    if (from_.HasField(message_, FieldNamed(message_, name))) {
      (*this)(name, value);
    }
  }
  // Checks a rule that spans several fields: valid() is a status.
  void Check(const auto& valid) {
    if (status_.ok()) {
      status_ = valid();
    }
  }

 private:
  template <class V>
  absl::Status Take(const FieldDescriptor* field, V& value, const auto& rule) {
    if constexpr (std::same_as<V, bool>) {
      value = from_.GetBool(message_, field);
    } else if constexpr (std::same_as<V, int32_t>) {
      value = from_.GetInt32(message_, field);
    } else if constexpr (std::same_as<V, int64_t>) {
      value = from_.GetInt64(message_, field);
    } else if constexpr (std::same_as<V, double>) {
      value = from_.GetDouble(message_, field);
    } else if constexpr (std::same_as<V, std::string>) {
      value = from_.GetString(message_, field);
    } else if constexpr (std::is_enum_v<V>) {
      const int number = from_.GetEnumValue(message_, field);
      if (number == 0 || field->enum_type()->FindValueByNumber(number) == nullptr) {
        return absl::InvalidArgumentError(
            fmt::format("{} is {}; this version knows no such value", field->name(), number));
      }
      value = static_cast<V>(number - kFirstOnWire<V>);
    } else {
      return TakeStruct(field->name(), from_.GetMessage(message_, field), value);
    }
    return rule(field->name(), value);
  }
  template <class V>
  absl::Status Take(const FieldDescriptor* field, std::optional<V>& value, const auto& rule) {
    return from_.HasField(message_, field) ? Take(field, value.emplace(), rule) : absl::OkStatus();
  }
  template <class V, class Rule>
  absl::Status Take(const FieldDescriptor* field, std::vector<V>& values, const Many<Rule>& many) {
    const int count = from_.FieldSize(message_, field);
    GP_RETURN_IF_ERROR(CheckCount(field->name(), count, many.max_count));
    values.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      if constexpr (std::is_arithmetic_v<V>) {
        values[i] = from_.GetRepeatedFieldRef<V>(message_, field).Get(i);
        if (!many.rule(field->name(), values[i]).ok()) {
          return many.rule(fmt::format("{}[{}]", field->name(), i), values[i]);
        }
      } else if (absl::Status status = TakeStruct(fmt::format("{}[{}]", field->name(), i),
                                                  from_.GetRepeatedMessage(message_, field, i), values[i]);
                 !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  static absl::Status TakeStruct(std::string_view path, const Message& message, auto& value) {
    Reader reader(message);
    Fields(reader, value);
    return Under(path, reader.status());
  }

  const Message& message_;
  const google::protobuf::Reflection& from_;
  absl::Status status_;
};

template <class To, class T>
To Write(const T& value) {
  To message;
  Writer writer(message);
  Fields(writer, value);
  return message;
}

template <class T>
absl::StatusOr<T> Read(const Message& message) {
  T value;
  Reader reader(message);
  Fields(reader, value);
  GP_RETURN_IF_ERROR(reader.status());
  return value;
}

}  // namespace geopipe::wire
