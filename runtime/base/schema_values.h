// The types of values in configuration files: how each is read, shown and called in the reference.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/suggest.h"
#include "runtime/base/yaml_reader.h"

namespace geopipe {

template <class M>
struct ValueType {
  std::string name;  // "duration"
  // The error is a sentence without place: "'20' has no unit; write it like 20ms".
  std::function<absl::StatusOr<M>(const YamlNode&)> read;
  std::function<std::string(const M&)> show;  // as a file would write it; "" when there is nothing to show
};

// "a list stands where `type` is needed": the error, without its place.
absl::Status WrongKind(const YamlNode& node, std::string_view type);
// The scalar's text, or an error that says what `type` expects.
absl::StatusOr<std::string> ScalarText(const YamlNode& node, std::string_view type);

ValueType<std::string> StringValue();
// A path; relative ones are taken from `base` (a folder), "" stays empty.
ValueType<std::string> PathValue(std::string base);
ValueType<int64_t> IntegerValue();
ValueType<int32_t> Integer32Value();
ValueType<uint64_t> UnsignedValue();  // seeds
ValueType<double> NumberValue();
ValueType<bool> BooleanValue();
ValueType<int64_t> DurationValue();  // nanoseconds
ValueType<double> BandwidthValue();  // bytes per second
ValueType<int64_t> BytesValue();
ValueType<double> RatioValue();  // "15%"

// `type`, with another text for the default.
template <class M>
ValueType<M> Showing(std::string default_text, ValueType<M> type) {
  type.show = [default_text = std::move(default_text)](const M&) { return default_text; };
  return type;
}

// Words that stand for values.
template <class M>
ValueType<M> ChoiceValue(std::vector<std::pair<std::string, M>> choices) {
  std::string name;
  std::vector<std::string> words;
  for (const auto& choice : choices) {
    name += (name.empty() ? "" : " | ") + choice.first;
    words.push_back(choice.first);
  }
  ValueType<M> type;
  type.name = name;
  type.read = [choices, name, words](const YamlNode& node) -> absl::StatusOr<M> {
    GP_ASSIGN_OR_RETURN(const std::string text, ScalarText(node, name));
    for (const auto& choice : choices) {
      if (choice.first == text) {
        return choice.second;
      }
    }
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not one of {}{}", text, fmt::join(words, ", "), DidYouMean(text, words)));
  };
  type.show = [choices = std::move(choices)](const M& value) {
    for (const auto& choice : choices) {
      if (choice.second == value) {
        return choice.first;
      }
    }
    return std::string();
  };
  return type;
}

// `word` stands for `value`; everything else is read as `type`.
template <class M>
ValueType<M> WordOr(std::string word, M value, ValueType<M> type) {
  ValueType<M> either;
  either.name = type.name + " | " + word;
  either.read = [word, value, read = type.read](const YamlNode& node) -> absl::StatusOr<M> {
    return node.is_scalar() && node.scalar == word ? absl::StatusOr<M>(value) : read(node);
  };
  either.show = [word, value, show = type.show](const M& shown) { return shown == value ? word : show(shown); };
  return either;
}

// `word` stands for no value.
template <class M>
ValueType<std::optional<M>> OptionalValue(std::string word, ValueType<M> type) {
  ValueType<std::optional<M>> optional;
  optional.name = type.name + " | " + word;
  optional.read = [word, read = type.read](const YamlNode& node) -> absl::StatusOr<std::optional<M>> {
    if (node.is_scalar() && node.scalar == word) {
      return std::optional<M>();
    }
    GP_ASSIGN_OR_RETURN(M value, read(node));
    return std::optional<M>(std::move(value));
  };
  optional.show = [word, show = type.show](const std::optional<M>& shown) {
    return shown.has_value() ? show(*shown) : word;
  };
  return optional;
}

// A list, or one value in place of a list of one.
template <class M>
ValueType<std::vector<M>> ListValue(ValueType<M> type) {
  ValueType<std::vector<M>> list;
  list.name = "list of " + type.name;
  list.read = [read = type.read](const YamlNode& node) -> absl::StatusOr<std::vector<M>> {
    std::vector<M> values;
    if (!node.is_list()) {
      GP_ASSIGN_OR_RETURN(M value, read(node));
      values.push_back(std::move(value));
      return values;
    }
    for (const YamlNode& item : node.items) {
      absl::StatusOr<M> value = read(item);
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            fmt::format("entry {}: {}", values.size() + 1, std::string(value.status().message())));
      }
      values.push_back(*std::move(value));
    }
    return values;
  };
  list.show = [show = type.show](const std::vector<M>& values) {
    std::string text;
    for (const M& value : values) {
      text += (text.empty() ? "" : ", ") + show(value);
    }
    return "[" + text + "]";
  };
  return list;
}

}  // namespace geopipe
