#include "optimizer/base/quantities.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

struct Unit {
  std::string_view name;
  double factor;  // in base units
};

// Units in ascending order; formatting takes the largest that is not above the value.
constexpr std::array<Unit, 6> kDurations{
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};
// Spellings that people are shown and may write: the micro sign, and the Greek letter that some keyboards have instead.
constexpr std::array<Unit, 2> kMicroseconds{{{"µs", 1e3}, {"μs", 1e3}}};
constexpr std::array<Unit, 4> kHumanDurations{{{"ns", 1}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
constexpr std::array<Unit, 5> kBitRates{
    {{"bps", 1.0 / 8}, {"kbps", 1e3 / 8}, {"Mbps", 1e6 / 8}, {"Gbps", 1e9 / 8}, {"Tbps", 1e12 / 8}}};
constexpr std::array<Unit, 10> kByteRates{{{"B/s", 1},
                                           {"kB/s", 1e3},
                                           {"KB/s", 1e3},
                                           {"KiB/s", 1024},
                                           {"MB/s", 1e6},
                                           {"MiB/s", 1048576},
                                           {"GB/s", 1e9},
                                           {"GiB/s", 1073741824},
                                           {"TB/s", 1e12},
                                           {"TiB/s", 1099511627776}}};
constexpr std::array<Unit, 6> kBinarySizes{{{"B", 1},
                                            {"KiB", 1024},
                                            {"MiB", 1048576},
                                            {"GiB", 1073741824},
                                            {"TiB", 1099511627776},
                                            {"PiB", 1125899906842624}}};
constexpr std::array<Unit, 5> kDecimalSizes{{{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};

constexpr double kMaxSeconds = 9e9;
constexpr double kMaxBytes = 1152921504606846976.0;  // 2^60
constexpr double kMaxBytesPerSecond = 1e15;          // a thousand times the fastest memory there is

struct Quantity {
  double number = 0;
  std::string_view unit;
};

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

absl::Status Invalid(std::string_view text, std::string_view what, std::string_view example) {
  return absl::InvalidArgumentError(fmt::format("'{}' is not {}; write it like {}", text, what, example));
}

absl::StatusOr<Quantity> Split(std::string_view text, std::string_view what, std::string_view example) {
  const std::string_view trimmed = Trim(text);
  Quantity quantity;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), quantity.number);
  if (error != std::errc() || !std::isfinite(quantity.number)) {
    return Invalid(text, what, example);
  }
  if (quantity.number < 0) {
    return absl::InvalidArgumentError(fmt::format("'{}' is negative; {} is not", text, what));
  }
  quantity.unit = Trim(trimmed.substr(static_cast<size_t>(end - trimmed.data())));
  return quantity;
}

// Parses the value in base units. `zero_needs_unit`: "0" alone is an error too.
absl::StatusOr<double> Parse(std::string_view text, std::string_view what, std::string_view example,
                             std::span<const Unit> units, std::span<const Unit> more_units, bool zero_needs_unit) {
  GP_ASSIGN_OR_RETURN(const Quantity quantity, Split(text, what, example));
  if (quantity.unit.empty()) {
    if (quantity.number == 0 && !zero_needs_unit) {
      return 0.0;
    }
    return absl::InvalidArgumentError(fmt::format("'{}' has no unit; write it like {}", text, example));
  }
  for (const std::span<const Unit> table : {units, more_units}) {
    for (const Unit& unit : table) {
      if (unit.name == quantity.unit) {
        return quantity.number * unit.factor;
      }
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' has the unknown unit '{}'; write it like {}", text, quantity.unit, example));
}

// Rounds half-up, with the fraction taken exactly: adding a half first would itself round above 2^52.
int64_t RoundHalfUp(double value) {
  const double whole = std::floor(value);
  return static_cast<int64_t>(whole) + (value - whole >= 0.5 ? 1 : 0);
}

// "989e12" of "989TFLOPS" or "989 TFLOP/s", "10e-3" of "10ms": what a number with a unit would be without it, in its
// base unit; empty when it is none.
std::string PlainNumber(std::string_view text) {
  constexpr std::string_view kPrefixes = "kMGTPE";
  double number = 0;
  const std::string_view trimmed = Trim(text);
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number);
  const std::string_view digits = trimmed.substr(0, static_cast<size_t>(end - trimmed.data()));
  const std::string_view unit = Trim(trimmed.substr(digits.size()));
  const size_t prefix = unit.empty() ? std::string_view::npos : kPrefixes.find(unit.front());
  const bool has_exponent = digits.find_first_of("eE") != std::string_view::npos;
  for (const auto& [name, exponent] :
       {std::pair{"s", ""}, {"ms", "e-3"}, {"us", "e-6"}, {"µs", "e-6"}, {"ns", "e-9"}}) {
    if (error == std::errc() && std::isfinite(number) && unit == name && !has_exponent) {
      return fmt::format("{}{}", digits, exponent);
    }
  }
  return error != std::errc() || !std::isfinite(number) || prefix == std::string_view::npos || has_exponent
             ? ""
             : fmt::format("{}e{}", digits, 3 * (prefix + 1));
}

// The fewest digits from which `value` comes back when multiplied by `factor` again; empty when there are none.
std::string Digits(double value, double factor) {
  for (const int precision : {15, 16, 17}) {
    std::string digits = fmt::format("{:.{}g}", value / factor, precision);
    double read = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), read);
    if (read * factor == value) {
      return digits;
    }
  }
  return "";
}

// Writes the value in the largest unit that makes a short number of at least one; if none is short, in the largest that
// is exact.
std::string Format(double value, std::span<const Unit> units) {
  constexpr size_t kShort = 6;
  std::string longest;
  for (size_t i = units.size(); i-- > 0;) {
    if (value < units[i].factor && i > 0) {
      continue;
    }
    const std::string digits = Digits(value, units[i].factor);
    if (digits.empty()) {
      continue;
    }
    if (digits.size() <= kShort) {
      return fmt::format("{}{}", digits, units[i].name);
    }
    if (longest.empty()) {
      longest = fmt::format("{}{}", digits, units[i].name);
    }
  }
  return longest;
}

// The largest unit in which the value, rounded to `digits` digits, is at least one; else the smallest.
const Unit& UnitFor(double value, int digits, std::span<const Unit> units) {
  const double rounds_to_one = 1 - 0.5 * std::pow(10.0, -digits);
  size_t i = units.size() - 1;
  while (i > 0 && value < rounds_to_one * units[i].factor) {
    --i;
  }
  return units[i];
}

// Writes three digits.
std::string Human(double value, std::span<const Unit> units) {
  const Unit& unit = UnitFor(value, 3, units);
  const double number = value / unit.factor;
  const int decimals = unit.factor == 1 ? 0 : number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", number, decimals, unit.name);
}

// Writes at most `digits` digits.
std::string Short(double value, int digits, std::span<const Unit> units) {
  const Unit& unit = UnitFor(value, digits, units);
  return fmt::format("{:.{}g} {}", value / unit.factor, digits, unit.name);
}

}  // namespace

absl::StatusOr<int64_t> ParseDuration(std::string_view text) {
  const std::string_view terms = Trim(text);
  double sum_ns = 0;
  for (size_t begin = 0; begin == 0 || begin < terms.size();) {
    size_t end = terms.find(' ', begin + 1);  // the next term begins with a digit
    while (end != std::string_view::npos && !(terms[end + 1] >= '0' && terms[end + 1] <= '9')) {
      end = terms.find(' ', end + 1);
    }
    GP_ASSIGN_OR_RETURN(const double ns, Parse(terms.substr(begin, end - begin), "a duration", "20ms, 1.5s or 10min",
                                               kDurations, kMicroseconds, /*zero_needs_unit=*/false));
    sum_ns += ns;
    begin = std::min(end, terms.size());
  }
  if (sum_ns > kMaxSeconds * 1e9) {
    return absl::InvalidArgumentError(fmt::format("'{}' is too long; the longest duration is {}s", text, kMaxSeconds));
  }
  return RoundHalfUp(sum_ns);
}

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  GP_ASSIGN_OR_RETURN(const double bytes_per_s, Parse(text, "a bandwidth", "400Gbps or 50GB/s", kBitRates, kByteRates,
                                                      /*zero_needs_unit=*/true));
  if (!(bytes_per_s > 0) || !std::isfinite(bytes_per_s)) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not a positive bandwidth; write it like 400Gbps", text));
  }
  if (bytes_per_s > kMaxBytesPerSecond) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is too large; the largest bandwidth is {}", text, FormatBandwidth(kMaxBytesPerSecond)));
  }
  return bytes_per_s;
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  GP_ASSIGN_OR_RETURN(const double bytes, Parse(text, "a size", "64GiB or 512MiB", kBinarySizes, kDecimalSizes,
                                                /*zero_needs_unit=*/false));
  if (bytes > kMaxBytes) {
    return absl::InvalidArgumentError(fmt::format("'{}' is too large; the largest size is 1024PiB", text));
  }
  return RoundHalfUp(bytes);
}

absl::StatusOr<double> ParseRatio(std::string_view text) {
  constexpr std::array<Unit, 1> kPercent{{{"%", 1}}};
  GP_ASSIGN_OR_RETURN(const double percent, Parse(text, "a share", "15%", kPercent, {}, /*zero_needs_unit=*/true));
  return percent / 100;
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    const std::string plain = PlainNumber(text);
    return plain.empty() ? Invalid(text, "a number", "3.0e-4")
                         : absl::InvalidArgumentError(fmt::format(
                               "'{}' has a unit and must be a plain number; write it like {}", text, plain));
  }
  return number;
}

absl::StatusOr<int64_t> ParseInteger(std::string_view text) {
  int64_t integer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), integer);
  if (error == std::errc() && end == text.data() + text.size()) {
    return integer;
  }
  // Whole numbers in exponent form are read up to the limit below which a double holds each of them.
  constexpr double kMaxExact = 9007199254740992.0;
  const absl::StatusOr<double> number = ParseNumber(text);
  if (!number.ok() && !PlainNumber(text).empty()) {
    return number.status();
  }
  if (!number.ok() || std::floor(*number) != *number || std::fabs(*number) > kMaxExact) {
    return Invalid(text, "a whole number", "1048576");
  }
  return static_cast<int64_t>(*number);
}

std::string FormatDuration(int64_t ns) { return ns == 0 ? "0s" : Format(static_cast<double>(ns), kDurations); }

std::string FormatBandwidth(double bytes_per_s) { return Format(bytes_per_s, kBitRates); }

std::string FormatBytes(int64_t bytes) { return Format(static_cast<double>(bytes), kBinarySizes); }

std::string FormatRatio(double ratio) { return fmt::format("{:.15g}%", ratio * 100); }

std::string HumanDuration(int64_t ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  if (ns < kSecond) {
    return Human(static_cast<double>(ns), std::span(kHumanDurations).first(3));
  }
  const int64_t seconds = ns / kSecond;
  if (seconds < 60) {
    return fmt::format("{:.3f} s", static_cast<double>(ns) / 1e9);
  }
  return seconds < 3600 ? fmt::format("{:.2f} s", static_cast<double>(ns) / 1e9)
                        : fmt::format("{:.4f} h", static_cast<double>(ns) / 3.6e12);
}

std::string HumanAge(int64_t ns) {
  const int64_t seconds = ns / 1'000'000'000;
  if (seconds < 60) {
    return fmt::format("{} s", seconds);
  }
  return seconds < 3600 ? fmt::format("{} min {:02} s", seconds / 60, seconds % 60)
                        : fmt::format("{} h {:02} min", seconds / 3600, seconds / 60 % 60);
}

std::string HumanBytes(int64_t bytes) { return Human(static_cast<double>(bytes), kBinarySizes); }

std::string HumanBandwidth(double bytes_per_s) { return Human(bytes_per_s, kBitRates); }

std::string Counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string HumanPercent(double ratio) {
  std::string text = fmt::format("{:.1f} %", ratio * 100);
  return text == "-0.0 %" ? "0.0 %" : text;
}

std::string ShortDuration(int64_t ns) { return Short(static_cast<double>(ns), 4, kHumanDurations); }

std::string ShortBandwidth(double bytes_per_s) { return Short(bytes_per_s, 3, kBitRates); }

}  // namespace geopipe
