#include "runtime/base/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "runtime/base/quantities.h"

namespace geopipe {
namespace {

absl::Status Wrong(const YamlNode& node, std::string_view type) {
  return absl::InvalidArgumentError(fmt::format("{} stands where {} is needed", node.Description(), type));
}

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

absl::StatusOr<std::string> ScalarText(const YamlNode& node, std::string_view type) {
  if (!node.is_scalar()) {
    return Wrong(node, fmt::format("one value ({})", type));
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

std::string JoinPath(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

absl::Status NotAMap(const YamlDocument& document, const YamlNode& node, std::string_view path) {
  return document.Error(node.mark, path, std::string(Wrong(node, "a map of keys").message()));
}

absl::Status NotAList(const YamlDocument& document, const YamlNode& node, std::string_view path) {
  return document.Error(node.mark, path, std::string(Wrong(node, "a list").message()));
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

void Indent(std::vector<SchemaRow>* rows, int by) {
  for (SchemaRow& row : *rows) {
    row.depth += by;
  }
}

}  // namespace internal

}  // namespace geopipe
