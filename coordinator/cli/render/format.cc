#include "coordinator/cli/render/format.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

bool IsNumeric(std::string_view cell) {
  return !cell.empty() && ((cell[0] >= '0' && cell[0] <= '9') || ((cell[0] == '-' || cell[0] == '+') && cell != "-"));
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  GP_CHECK(cells.size() == headings_.size(), "{} cells for {} headings", cells.size(), headings_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<int32_t> widths(headings_.size());
  std::vector<bool> numeric(headings_.size(), !rows_.empty());
  for (size_t c = 0; c < headings_.size(); ++c) {
    widths[c] = CodePoints(headings_[c]);
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], CodePoints(row[c]));
      numeric[c] = numeric[c] && (IsNumeric(row[c]) || row[c] == "-");
    }
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - CodePoints(cells[c]), ' ');
      if (c > 0) {
        line += "  ";
      }
      line += numeric[c] ? padding + cells[c] : cells[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line;
    text += '\n';
  };
  add(headings_);
  for (const auto& row : rows_) {
    add(row);
  }
  return text;
}

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

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double Excess(int64_t value, int64_t base) { return base == 0 ? 0 : Ratio(value, base) - 1; }

int32_t CodePoints(std::string_view text) {
  return static_cast<int32_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

double Seconds(int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e9; }

}  // namespace geopipe
