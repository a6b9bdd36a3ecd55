// Findings of a phase of device_check: a file of tab-separated values, one line on standard error for each failure, and
// one on standard output at the end.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Rows of a file, each written out when it is added: what was found is there whatever ends the process. One thread.
class TsvTable {
 public:
  // Begins the file anew. Errors: the system's, with the path.
  static absl::StatusOr<TsvTable> Create(const std::string& path, const std::vector<std::string>& columns);

  // REQUIRES: as many cells as columns. Tabs and newlines in them become blanks.
  void Add(const std::vector<std::string>& cells);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TsvTable(std::FILE* file, size_t columns) : file_(file), columns_(columns) {}

  std::unique_ptr<std::FILE, Close> file_;
  size_t columns_;
};

// Checks of values against bounds: a table of them and their count.
class Report {
 public:
  // The table is <folder>/<phase's file>: columns thing, value, bound, verdict.
  static absl::StatusOr<Report> Create(const std::string& folder, const std::string& file);

  // `value` has to be at most `bound`; NaN is not.
  void Check(std::string_view thing, double value, double bound);
  // `count` has to be `expected`.
  void CheckCount(std::string_view thing, int64_t count, int64_t expected);
  // `thing` has to hold.
  void Check(std::string_view thing, bool holds) { CheckCount(thing, holds ? 1 : 0, 1); }
  // Adds a value that nothing bounds.
  void Note(std::string_view thing, std::string_view value);
  // Notes a check for which there was no time.
  void LeaveOut(std::string_view thing);

  int64_t failed() const { return failed_; }
  // "kernels: 214 checks, 0 failed (worst 0.31 of the bound) in 12.3 s".
  std::string Summary(std::string_view phase, double seconds) const;

 private:
  void Add(std::string_view thing, const std::string& value, const std::string& bound, bool holds);
  explicit Report(TsvTable table) : table_(std::move(table)) {}

  TsvTable table_;
  int64_t checks_ = 0;
  int64_t failed_ = 0;
  int64_t left_out_ = 0;
  double worst_ = 0;  // of value / bound, where the bound is not 0
};

}  // namespace geopipe
