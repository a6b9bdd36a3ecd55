#include "runtime/base/config/schema_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/home_path.h"

namespace geopipe {
namespace {

template <class M, class Parse>
ValueType<M> TextValue(const std::string& name, Parse parse, std::function<std::string(const M&)> show,
                       const std::function<std::string(const Draw&)>& sample) {
  ValueType<M> type;
  type.name = name;
  type.read = [name, parse](const YamlNode& node) -> absl::StatusOr<M> {
    GP_ASSIGN_OR_RETURN(const std::string text, ScalarText(node, name));
    return parse(text);
  };
  type.show = std::move(show);
  type.sample = sample;
  return type;
}

template <class M>
std::string ShowNumber(const M& value) {
  return fmt::format("{}", value);
}

// Draws an integer of any magnitude, small ones as often as large ones.
uint64_t SampleInteger(const Draw& draw) {
  const uint64_t shift = draw() % 64;
  return draw() >> shift;
}

std::string SampleIntegerText(const Draw& draw) { return fmt::format("{}", SampleInteger(draw)); }

// Draws a number from 1e-9 to 1e6.
double SampleNumber(const Draw& draw) {
  const double fraction = std::ldexp(static_cast<double>(draw() >> 11) + 1, -53);
  return fraction * std::pow(10, static_cast<int>(draw() % 13) - 6);
}

// Draws text that is hard to write and to read, or looks like something else.
std::string SampleText(const Draw& draw) {
  constexpr std::array<std::string_view, 14> kTexts = {
      "plain", "two words", "# no comment", "'single' \"double\" \\", "null", "~",    "- dash",
      "a: b",  "tab\there", "line\nbreak",  "\u00e9\u4e16",           "1e3",  "auto", ""};
  return fmt::format("{}{}", kTexts[draw() % kTexts.size()], draw() % 2 == 0 ? "" : SampleIntegerText(draw));
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

absl::Status OutOfRange(std::string_view shown, std::string_view range) {
  constexpr size_t kMaxShown = 80;
  const std::string_view cut = shown.substr(0, kMaxShown);
  return absl::InvalidArgumentError(
      fmt::format("is {}{}; it must be {}", cut, cut.size() < shown.size() ? "..." : "", range));
}

absl::Status OrWord(const absl::Status& status, std::string_view word) {
  return absl::Status(status.code(), fmt::format("{}, or {}", std::string(status.message()), word));
}

std::string YamlText(std::string_view text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/' || c == '-' || c == ':';
  };
  const bool ends = !text.empty() && text.find_first_of("-.:") != 0 && text.back() != ':';
  if (ends && std::ranges::all_of(text, plain) && text != "null" && text != "Null" && text != "NULL") {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += fmt::format("\\{}", c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

ValueType<std::string> StringValue() {
  return TextValue<std::string>(
      "text", [](const std::string& text) -> absl::StatusOr<std::string> { return text; }, &YamlText,
      [](const Draw& draw) { return YamlText(SampleText(draw)); });
}

ValueType<std::string> PathValue(std::string base) {
  return TextValue<std::string>(
      "path",
      [base = std::move(base)](const std::string& text) -> absl::StatusOr<std::string> {
        GP_RETURN_IF_ERROR(CheckIsPath(text));
        if (base.empty()) {
          GP_RETURN_IF_ERROR(RefuseHome(text));
          return text.empty() ? text : std::filesystem::path(text).lexically_normal().string();
        }
        GP_ASSIGN_OR_RETURN(const std::string whole, ExpandHome(text));
        return text.empty() ? text : (std::filesystem::path(base) / whole).lexically_normal().string();
      },
      &YamlText, [](const Draw& draw) { return YamlText(fmt::format("/{}", SampleText(draw))); });
}

ValueType<int64_t> IntegerValue() {
  return TextValue<int64_t>("integer", &ParseInteger, &ShowNumber<int64_t>, &SampleIntegerText);
}

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
      &ShowNumber<int32_t>, &SampleIntegerText);
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
      &ShowNumber<uint64_t>, &SampleIntegerText);
}

ValueType<double> NumberValue() {
  return TextValue<double>("number", &ParseNumber, &ShowNumber<double>,
                           [](const Draw& draw) { return ShowNumber(SampleNumber(draw)); });
}

ValueType<bool> BooleanValue() {
  return TextValue<bool>(
      "true | false",
      [](const std::string& text) -> absl::StatusOr<bool> {
        if (text != "true" && text != "false") {
          return absl::InvalidArgumentError(fmt::format("'{}' is neither true nor false", text));
        }
        return text == "true";
      },
      &ShowNumber<bool>, [](const Draw& draw) { return ShowNumber(draw() % 2 == 0); });
}

ValueType<int64_t> DurationValue() {
  return TextValue<int64_t>("duration", &ParseDuration, &FormatDuration, [](const Draw& draw) {
    return FormatDuration(static_cast<int64_t>(SampleInteger(draw) >> 11));
  });
}

ValueType<double> BandwidthValue() {
  return TextValue<double>(
      "bandwidth", &ParseBandwidth,
      [](const double& value) { return value > 0 ? FormatBandwidth(value) : std::string(); },
      [](const Draw& draw) { return FormatBandwidth(SampleNumber(draw)); });
}

ValueType<int64_t> BytesValue() {
  return TextValue<int64_t>("size", &ParseBytes, &FormatBytes, [](const Draw& draw) {
    return FormatBytes(static_cast<int64_t>(SampleInteger(draw) >> 11));
  });
}

ValueType<double> RatioValue() {
  return TextValue<double>("percentage", &ParseRatio, &FormatRatio,
                           [](const Draw& draw) { return FormatRatio(static_cast<double>(draw() % 1'000'000) / 1e5); });
}

}  // namespace geopipe
