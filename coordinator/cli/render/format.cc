#include "coordinator/cli/render/format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace geopipe {

std::string HumanCount(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string FormatRuns(std::span<const int32_t> values) {
  constexpr size_t kMaxSpelledOut = 8;
  if (values.size() <= kMaxSpelledOut) {
    return FormatList(values);
  }
  std::string text;
  for (size_t first = 0, end = 0; first < values.size(); first = end) {
    while (end < values.size() && values[end] == values[first]) {
      ++end;
    }
    text += fmt::format("{}{}{}", first == 0 ? "" : ", ", values[first],
                        end - first > 1 ? fmt::format(" × {}", end - first) : "");
  }
  return text;
}

std::string FormatList(std::span<const int32_t> values) {
  return values.empty() ? "-" : fmt::format("{}", fmt::join(values, ","));
}

std::string NamesText(std::span<const std::string> names) {
  constexpr size_t kMaxSpelledOut = 12;
  constexpr size_t kFirst = 10;
  return names.size() <= kMaxSpelledOut
             ? fmt::format("{}", fmt::join(names, ", "))
             : fmt::format("{} and {} more", fmt::join(names.first(kFirst), ", "), names.size() - kFirst);
}

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double Excess(int64_t value, int64_t base) { return base == 0 ? 0 : Ratio(value, base) - 1; }

double Seconds(int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e9; }

}  // namespace geopipe
