// Text for people: tables and quantities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Columns aligned to the widest cell, two spaces apart, headings in capitals; numbers (first character a digit, sign or
// '-') are set flush right. Knows the display width of UTF-8 text (one column per code point).
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}

  // REQUIRES: as many cells as headings.
  void AddRow(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }

  // Every line ends with a newline; no trailing blanks.
  std::string Render() const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

// "812 ns", "3.21 µs", "20.0 ms", "6.510 s", "2 min 05 s", "3 h 12 min".
std::string HumanDuration(int64_t duration_ns);
// "512 B", "1.50 KiB", "62.1 GiB".
std::string HumanBytes(int64_t bytes);
// Decimal bits per second: "1.00 Gbps".
std::string HumanBandwidth(double bytes_per_s);
// "11.5 %".
std::string HumanPercent(double ratio);
// "12,345".
std::string HumanCount(int64_t count);
// "2,1"; "-" when empty.
std::string FormatList(std::span<const int32_t> values);

// Nanoseconds as seconds: the nearest double.
double Seconds(int64_t duration_ns);

}  // namespace geopipe
