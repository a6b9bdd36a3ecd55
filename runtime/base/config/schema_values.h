// Types of values in configuration files: how each is read, shown and named in the reference.
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
#include "runtime/base/config/yaml_reader.h"
#include "runtime/base/suggest.h"

namespace geopipe {

// Random bits, the same for a seed.
using Draw = std::function<uint64_t()>;

template <class M>
struct ValueType {
  std::string name;  // "duration"
  // The error is a sentence without place: "'20' has no unit; write it like 20ms".
  std::function<absl::StatusOr<M>(const YamlNode&)> read;
  std::function<std::string(const M&)> show;       // YAML that reads as the value; "" when there is nothing to show
  std::function<std::string(const Draw&)> sample;  // YAML of some value, perhaps one out of range
  std::string range = {};                          // "at least 1"; empty: every value of the type
  std::optional<std::string> default_text = {};    // in the reference, in place of the shown default
};

// "a list stands where `type` is needed": the error, without its place.
absl::Status WrongKind(const YamlNode& node, std::string_view type);
// The scalar's text, or an error that says what `type` expects.
absl::StatusOr<std::string> ScalarText(const YamlNode& node, std::string_view type);

// `text` as a YAML scalar: in double quotes unless it is a plain word.
std::string YamlText(std::string_view text);

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
ValueType<M> Showing(const std::string& default_text, ValueType<M> type) {
  type.default_text = default_text;
  return type;
}

// "is 0; it must be `range`". Long values are cut.
absl::Status OutOfRange(std::string_view shown, std::string_view range);

// Restricts `type` to the values that `allowed` accepts.
template <class M>
ValueType<M> Restricted(ValueType<M> type, const std::string& range, std::function<bool(const M&)> allowed) {
  type.read = [read = std::move(type.read), show = type.show, range,
               allowed = std::move(allowed)](const YamlNode& node) -> absl::StatusOr<M> {
    GP_ASSIGN_OR_RETURN(M value, read(node));
    return allowed(value) ? absl::StatusOr<M>(std::move(value)) : OutOfRange(show(value), range);
  };
  type.range += (type.range.empty() ? "" : "; ") + range;
  return type;
}

template <class M>
ValueType<M> AtLeast(M min, ValueType<M> type) {
  const std::string range = fmt::format("at least {}", type.show(min));
  return Restricted<M>(std::move(type), range, [min](const M& value) { return value >= min; });
}

template <class M>
ValueType<M> From(M min, M max, ValueType<M> type) {
  const std::string range = fmt::format("from {} to {}", type.show(min), type.show(max));
  return Restricted<M>(std::move(type), range, [min, max](const M& value) { return value >= min && value <= max; });
}

template <class M>
ValueType<M> Above(M min, ValueType<M> type) {
  const std::string range = fmt::format("above {}", type.show(min));
  return Restricted<M>(std::move(type), range, [min](const M& value) { return value > min; });
}

// Adds to the remedy in `status` that `word` may be given too.
absl::Status OrWord(const absl::Status& status, std::string_view word);

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
  type.sample = [words](const Draw& draw) { return words[draw() % words.size()]; };
  return type;
}

// Reads `word` as `value`, and everything else as `type`.
template <class M>
ValueType<M> WordOr(std::string word, M value, ValueType<M> type) {
  ValueType<M> either;
  either.name = type.name + " | " + word;
  either.read = [word, value, read = type.read](const YamlNode& node) -> absl::StatusOr<M> {
    if (node.is_scalar() && node.scalar == word) {
      return value;
    }
    absl::StatusOr<M> given = read(node);
    return given.ok() ? std::move(given) : OrWord(given.status(), word);
  };
  either.show = [word, value, show = type.show](const M& shown) { return shown == value ? word : show(shown); };
  either.sample = [word, sample = type.sample](const Draw& draw) { return draw() % 4 == 0 ? word : sample(draw); };
  either.range = std::move(type.range);
  return either;
}

// Reads `word` as no value.
template <class M>
ValueType<std::optional<M>> OptionalValue(std::string word, ValueType<M> type) {
  ValueType<std::optional<M>> optional;
  optional.name = std::move(type.name);
  optional.read = [read = std::move(type.read)](const YamlNode& node) -> absl::StatusOr<std::optional<M>> {
    GP_ASSIGN_OR_RETURN(M value, read(node));
    return std::optional<M>(std::move(value));
  };
  optional.show = [show = std::move(type.show)](const std::optional<M>& shown) { return show(*shown); };
  optional.sample = std::move(type.sample);
  optional.range = std::move(type.range);
  return WordOr<std::optional<M>>(std::move(word), std::nullopt, std::move(optional));
}

// A list, or one value in place of a list of one. Errors about an entry begin with its index, "[1]: ...".
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
            fmt::format("[{}]: {}", values.size(), std::string(value.status().message())));
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
  list.sample = [sample = type.sample](const Draw& draw) {
    constexpr uint64_t kMaxSampled = 4;
    std::string text = sample(draw);
    for (uint64_t more = draw() % kMaxSampled; more > 0; --more) {
      text += ", " + sample(draw);
    }
    return "[" + text + "]";
  };
  list.range = std::move(type.range);
  return list;
}

}  // namespace geopipe
