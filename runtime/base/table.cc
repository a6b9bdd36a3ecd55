#include "runtime/base/table.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr int32_t kGap = 2;
constexpr int32_t kReadable = 24;  // columns of text are not made narrower than this to save a table from being parted

bool IsNumeric(std::string_view cell) {
  constexpr std::string_view kAtMost = "≤ ";
  if (cell.starts_with(kAtMost)) {
    cell.remove_prefix(kAtMost.size());
  }
  return !cell.empty() && ((cell[0] >= '0' && cell[0] <= '9') || ((cell[0] == '-' || cell[0] == '+') && cell != "-"));
}

// Returns the width of all columns with the gaps between them.
int32_t TotalOf(const std::vector<int32_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), kGap * (static_cast<int32_t>(widths.size()) - 1));
}

// Makes the widest columns narrower, none below `least`, until all of them fit, if they can.
void Narrow(std::vector<int32_t>& widths, const std::vector<int32_t>& least, int32_t width) {
  for (int32_t excess = TotalOf(widths) - width; excess > 0; --excess) {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] > least[i] && (widest == widths.size() || widths[i] > widths[widest])) {
        widest = i;
      }
    }
    if (widest == widths.size()) {
      return;
    }
    --widths[widest];
  }
}

// Cells side by side, each in the lines that it needs; headings end in the same line, cells begin in it.
void AppendRow(const std::vector<std::vector<std::string>>& cells, const std::vector<int32_t>& widths,
               const std::vector<bool>& right, bool heading, std::string* text) {
  size_t height = 0;
  for (const auto& cell : cells) {
    height = std::max(height, cell.size());
  }
  for (size_t row = 0; row < height; ++row) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const size_t skipped = heading ? height - cells[c].size() : 0;
      const std::string_view part =
          row >= skipped && row - skipped < cells[c].size() ? std::string_view(cells[c][row - skipped]) : "";
      const std::string padding(static_cast<size_t>(std::max(0, widths[c] - DisplayWidth(part))), ' ');
      line.append(c > 0 ? kGap : 0, ' ');
      line.append(right[c] ? padding : "").append(part).append(right[c] ? "" : padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    *text += line + "\n";
  }
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  GP_CHECK(cells.size() == headings_.size(), "{} cells for {} headings", cells.size(), headings_.size());
  rows_.push_back(std::move(cells));
}

Table::Column Table::Measure(size_t column) const {
  Column measured;
  int32_t piece = 0;
  measured.numeric = !rows_.empty();
  for (const auto& row : rows_) {
    const std::string& cell = row[column];
    measured.headed = std::max(measured.headed, DisplayWidth(cell));
    piece = std::max(piece, WidestPiece(cell));
    measured.numeric = measured.numeric && (IsNumeric(cell) || cell == "-");
  }
  measured.natural = std::max(measured.headed, DisplayWidth(headings_[column]));
  const int32_t heading = WidestPiece(headings_[column]);
  const bool breaks = !measured.numeric || measured.headed > kReadable;
  measured.least = std::max(heading, breaks ? std::max(piece, std::min(measured.headed, kReadable)) : measured.headed);
  measured.headed = std::max(measured.headed, heading);
  return measured;
}

std::vector<std::vector<size_t>> Table::Parts(const std::vector<Column>& columns, int32_t width) const {
  std::vector<size_t> keys(std::min(keys_, columns.size()));
  std::iota(keys.begin(), keys.end(), size_t{0});
  int32_t key_width = 0;
  for (const size_t key : keys) {
    key_width += columns[key].least + kGap;
  }
  std::vector<std::vector<size_t>> parts{keys};
  int32_t used = key_width - kGap;
  for (size_t c = keys.size(); c < columns.size(); ++c) {
    if (parts.back().size() > keys.size() && columns[c].least > width - used - kGap) {
      parts.push_back(keys);
      used = key_width - kGap;
    }
    parts.back().push_back(c);
    used += columns[c].least + kGap;
  }
  return parts;
}

void Table::RenderPart(const std::vector<Column>& columns, const std::vector<size_t>& shown, int32_t width,
                       std::string* text) const {
  std::vector<int32_t> widths;
  std::vector<int32_t> headed;
  std::vector<int32_t> least;
  std::vector<bool> right;
  for (const size_t c : shown) {
    widths.push_back(columns[c].natural);
    headed.push_back(columns[c].headed);
    least.push_back(columns[c].least);
    right.push_back(columns[c].numeric);
  }
  Narrow(widths, headed, width);
  Narrow(widths, least, width);
  Narrow(widths, std::vector<int32_t>(shown.size(), 1), width);  // a name that is longer than the line
  const auto wrapped = [&](const std::vector<std::string>& row) {
    std::vector<std::vector<std::string>> cells;
    for (size_t i = 0; i < shown.size(); ++i) {
      cells.push_back(Wrap(row[shown[i]], widths[i]));
    }
    return cells;
  };
  AppendRow(wrapped(headings_), widths, right, /*heading=*/true, text);
  for (const auto& row : rows_) {
    AppendRow(wrapped(row), widths, right, /*heading=*/false, text);
  }
}

std::string Table::Render(int32_t columns) const {
  std::vector<Column> measured;
  measured.reserve(headings_.size());
  for (size_t c = 0; c < headings_.size(); ++c) {
    measured.push_back(Measure(c));
  }
  std::string text;
  for (const std::vector<size_t>& part : Parts(measured, columns)) {
    text += text.empty() ? "" : "\n";
    RenderPart(measured, part, columns, &text);
  }
  return text;
}

}  // namespace geopipe
