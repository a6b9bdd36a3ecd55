#include "runtime/base/schema_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "optimizer/base/quantities.h"


namespace geopipe {
namespace {

template <class M, class Parse>
ValueType<M> TextValue(const std::string& name, Parse parse, std::function<std::string(const M&)> show) {
  ValueType<M> type;
  type.name = name;
  type.read = [name, parse](const YamlNode& node) -> absl::StatusOr<M> {
    GP_ASSIGN_OR_RETURN(const std::string text, ScalarText(node, name));
    return parse(text);
  };
  type.show = std::move(show);
  return type;
}

template <class M>
std::string ShowNumber(const M& value) {
  return fmt::format("{}", value);
}

}  // namespace

absl::Status WrongKind(const YamlNode& node, std::string_view type) {
  return absl::InvalidArgumentError(fmt::format("{} stands where {} is needed", node.Description(), type));
}

absl::StatusOr<std::string> ScalarText(const YamlNode& node, std::string_view type) {
  if (!node.is_scalar()) {
    return WrongKind(node, fmt::format("one value ({})", type));
  }
  return node.scalar;
}

ValueType<std::string> StringValue() {
  return TextValue<std::string>(
      "text", [](const std::string& text) -> absl::StatusOr<std::string> { return text; },
      [](const std::string& value) { return value; });
}

ValueType<std::string> PathValue(std::string base) {
  return TextValue<std::string>(
      "path",
      [base = std::move(base)](const std::string& text) -> absl::StatusOr<std::string> {
        return text.empty() ? text : (std::filesystem::path(base) / text).lexically_normal().string();
      },
      [](const std::string& value) { return value; });
}

ValueType<int64_t> IntegerValue() { return TextValue<int64_t>("integer", &ParseInteger, &ShowNumber<int64_t>); }

ValueType<int32_t> Integer32Value() {
  return TextValue<int32_t>(
      "integer",
      [](const std::string& text) -> absl::StatusOr<int32_t> {
        GP_ASSIGN_OR_RETURN(const int64_t value, ParseInteger(text));
        if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
          return absl::InvalidArgumentError(fmt::format("'{}' is too large; use a smaller number", text));
        }
        return static_cast<int32_t>(value);
      },
      &ShowNumber<int32_t>);
}

ValueType<uint64_t> UnsignedValue() {
  return TextValue<uint64_t>(
      "integer",
      [](const std::string& text) -> absl::StatusOr<uint64_t> {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size()) {
          return absl::InvalidArgumentError(fmt::format("'{}' is not a whole number from 0 to 2^64-1", text));
        }
        return value;
      },
      &ShowNumber<uint64_t>);
}

ValueType<double> NumberValue() { return TextValue<double>("number", &ParseNumber, &ShowNumber<double>); }

ValueType<bool> BooleanValue() {
  return TextValue<bool>(
      "true | false",
      [](const std::string& text) -> absl::StatusOr<bool> {
        if (text != "true" && text != "false") {
          return absl::InvalidArgumentError(fmt::format("'{}' is neither true nor false", text));
        }
        return text == "true";
      },
      &ShowNumber<bool>);
}

ValueType<int64_t> DurationValue() { return TextValue<int64_t>("duration", &ParseDuration, &FormatDuration); }

ValueType<double> BandwidthValue() {
  return TextValue<double>("bandwidth", &ParseBandwidth,
                           [](const double& value) { return value > 0 ? FormatBandwidth(value) : std::string(); });
}

ValueType<int64_t> BytesValue() { return TextValue<int64_t>("size", &ParseBytes, &FormatBytes); }

ValueType<double> RatioValue() { return TextValue<double>("percentage", &ParseRatio, &FormatRatio); }

}  // namespace geopipe
