// Tables for people, as wide as the terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/wrap.h"

namespace geopipe {

// Columns aligned to the widest cell, two spaces apart, headings in capitals; numbers (first character a digit, sign or
// '≤') are set flush right. A table that is too wide gives way in this order: headings break between words; the widest
// columns of text do, down to 24 columns each; what is still too wide goes into a table of its own below, each with the
// first column, which names the row. Numbers never break.
class Table {
 public:
  // `keys`: how many columns name a row.
  explicit Table(std::vector<std::string> headings, size_t keys = 1) : headings_(std::move(headings)), keys_(keys) {}

  // REQUIRES: as many cells as headings, none with line feeds.
  void AddRow(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }

  // Every line ends with a newline; no trailing blanks. No line is wider than `columns`, which is at least 20.
  std::string Render(int32_t columns = kAnyColumns) const;

 private:
  // Widths that a column needs.
  struct Column {
    int32_t natural = 0;  // in one line
    int32_t headed = 0;   // with a heading in several lines
    int32_t least = 0;    // with cells in several lines, too
    bool numeric = false;
  };

  Column Measure(size_t column) const;
  // Indices of the columns that are shown together: several parts when not all fit into `width`.
  std::vector<std::vector<size_t>> Parts(const std::vector<Column>& columns, int32_t width) const;
  void RenderPart(const std::vector<Column>& columns, const std::vector<size_t>& shown, int32_t width,
                  std::string* text) const;

  std::vector<std::string> headings_;
  size_t keys_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace geopipe
