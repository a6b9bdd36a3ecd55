#include "tests/device/report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::StatusOr<TsvTable> TsvTable::Create(const std::string& path, const std::vector<std::string>& columns) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, fmt::format("{}: cannot be written", path));
  }
  TsvTable table(file, columns.size());
  table.Add(columns);
  return table;
}

void TsvTable::Add(const std::vector<std::string>& cells) {
  GP_CHECK(cells.size() == columns_, "{} cells in a table of {} columns", cells.size(), columns_);
  std::string line = fmt::format("{}", fmt::join(cells, "\x1f"));
  std::ranges::replace_if(
      line, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  std::ranges::replace(line, '\x1f', '\t');
  fmt::print(file_.get(), "{}\n", line);
  std::fflush(file_.get());
}

absl::StatusOr<Report> Report::Create(const std::string& folder, const std::string& file) {
  GP_ASSIGN_OR_RETURN(TsvTable table, TsvTable::Create(folder + "/" + file, {"thing", "value", "bound", "verdict"}));
  return Report(std::move(table));
}

void Report::Check(std::string_view thing, double value, double bound) {
  const bool holds = value <= bound;
  if (bound > 0 && holds) {
    worst_ = std::max(worst_, value / bound);
  }
  Add(thing, fmt::format("{:.3g}", value), fmt::format("{:.3g}", bound), holds);
}

void Report::CheckCount(std::string_view thing, int64_t count, int64_t expected) {
  Add(thing, std::to_string(count), std::to_string(expected), count == expected);
}

void Report::Add(std::string_view thing, const std::string& value, const std::string& bound, bool holds) {
  ++checks_;
  table_.Add({std::string(thing), value, bound, holds ? "ok" : "FAILED"});
  if (!holds) {
    ++failed_;
    fmt::print(stderr, "FAILED {}: {} where {} is allowed\n", thing, value, bound);
  }
}

void Report::Note(std::string_view thing, std::string_view value) {
  table_.Add({std::string(thing), std::string(value), "", ""});
}

void Report::LeaveOut(std::string_view thing) {
  ++left_out_;
  table_.Add({std::string(thing), "", "", "left out"});
}

std::string Report::Summary(std::string_view phase, double seconds) const {
  const std::string left_out = left_out_ == 0 ? "" : fmt::format(", {} left out for want of time", left_out_);
  return fmt::format("{}: {} checks, {} failed (worst {:.2f} of the bound){} in {:.1f} s", phase, checks_, failed_,
                     worst_, left_out, seconds);
}

}  // namespace geopipe
