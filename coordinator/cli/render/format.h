// Text for people: tables, counts and lists.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/base/quantities.h"

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

// "12,345".
std::string HumanCount(int64_t count);
// "2,1"; "-" when empty.
std::string FormatList(std::span<const int32_t> values);
// The same, but of more than eight values each run of equal ones is written once: "0 × 2, 1, 3 × 12".
std::string FormatRuns(std::span<const int32_t> values);

// `part` of `whole`; 0 of nothing.
double Ratio(int64_t part, int64_t whole);
// Relative excess of a value over `base`; 0 where the base is 0.
double Excess(int64_t value, int64_t base);

// Characters of UTF-8 text, which are columns on the terminal: one per code point.
int32_t CodePoints(std::string_view text);

// Nanoseconds as seconds: the nearest double.
double Seconds(int64_t duration_ns);

}  // namespace geopipe
