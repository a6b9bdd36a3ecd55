#include "coordinator/cli/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

// Columns on the terminal: one per UTF-8 code point.
size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool IsNumeric(std::string_view cell) {
  return !cell.empty() && ((cell[0] >= '0' && cell[0] <= '9') || ((cell[0] == '-' || cell[0] == '+') && cell != "-"));
}

// Three significant digits with a unit.
std::string Significant(double value, std::string_view unit) {
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  GP_CHECK(cells.size() == headings_.size(), "{} cells for {} headings", cells.size(), headings_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths(headings_.size());
  std::vector<bool> numeric(headings_.size(), !rows_.empty());
  for (size_t c = 0; c < headings_.size(); ++c) {
    widths[c] = DisplayWidth(headings_[c]);
    for (const auto& row : rows_) {
      widths[c] = std::max(widths[c], DisplayWidth(row[c]));
      numeric[c] = numeric[c] && (IsNumeric(row[c]) || row[c] == "-");
    }
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - DisplayWidth(cells[c]), ' ');
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

std::string HumanDuration(int64_t duration_ns) {
  if (duration_ns < 1'000) {
    return fmt::format("{} ns", duration_ns);
  }
  const double ns = static_cast<double>(duration_ns);
  if (duration_ns < 1'000'000) {
    return Significant(ns / 1e3, "µs");
  }
  if (duration_ns < 1'000'000'000) {
    return Significant(ns / 1e6, "ms");
  }
  if (duration_ns < 60'000'000'000) {
    return fmt::format("{:.3f} s", ns / 1e9);
  }
  const int64_t seconds = duration_ns / 1'000'000'000;
  if (seconds < 3600) {
    return fmt::format("{} min {:02} s", seconds / 60, seconds % 60);
  }
  return fmt::format("{} h {:02} min", seconds / 3600, seconds / 60 % 60);
}

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  static constexpr std::array<std::string_view, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return Significant(value, kUnits[unit]);
}

std::string HumanBandwidth(double bytes_per_s) {
  static constexpr std::array<std::string_view, 5> kUnits{"bps", "kbps", "Mbps", "Gbps", "Tbps"};
  double value = bytes_per_s * 8;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return Significant(value, kUnits[unit]);
}

std::string HumanPercent(double ratio) { return fmt::format("{:.1f} %", ratio * 100); }

std::string HumanCount(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string FormatList(std::span<const int32_t> values) {
  return values.empty() ? "-" : fmt::format("{}", fmt::join(values, ","));
}

double Seconds(int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e9; }

}  // namespace geopipe
