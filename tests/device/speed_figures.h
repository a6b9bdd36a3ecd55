// Arithmetic of the speed phase: figures of repeated measurements, rates against ceilings, and what time is left. No
// device is needed here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"

namespace geopipe {

// Repetitions of the same work.
struct Figure {
  double median_us = 0;
  double spread_us = 0;  // between the 10th and the 90th percentile
};
// REQUIRES: there is a sample.
Figure FigureOf(std::vector<double> samples_us);

// The rates that a card reached in this run; 0: not measured.
struct Ceilings {
  double flops_per_s = 0;       // of bf16 products
  double copy_bytes_per_s = 0;  // of device memory, read and written
};

// A row of speed.tsv.
struct SpeedRow {
  std::string name;
  std::string shape;
  std::string type = {};
  Figure figure = {};
  int64_t flops = 0;
  int64_t bytes = 0;
  // The share's ceiling; kNothing where the row is one itself, or has none.
  enum class Against : uint8_t { kProducts, kCopies, kNothing } against = Against::kNothing;
  std::string note = {};

  double flops_per_s() const { return static_cast<double>(flops) / figure.median_us * 1e6; }
  double bytes_per_s() const { return static_cast<double>(bytes) / figure.median_us * 1e6; }
};

const std::vector<std::string>& SpeedColumns();
// The row's cells; empty where it has no such number.
std::vector<std::string> CellsOf(const SpeedRow& row, const Ceilings& ceilings);
// A row that tells something in place of figures.
std::vector<std::string> CellsOf(std::string_view name, std::string_view note);

// Time that may be spent. The clock outlives it.
class Budget {
 public:
  Budget(Clock& clock, int64_t end_ns) : clock_(clock), end_ns_(end_ns) {}
  // True where work of so long ends in time.
  bool Allows(int64_t needs_ns) const { return clock_.NowNs() + needs_ns <= end_ns_; }

 private:
  Clock& clock_;
  int64_t end_ns_;
};

// Sets of operands that repeated work takes in turn, so that no operand is in the cache when its turn comes: one where
// it is far larger than the cache itself.
int64_t SetsOf(int64_t operand_bytes, int64_t cache_bytes);

// Divides a round of at most `samples` samples, and of `round_ns` or three samples: how many samples there are, and of
// how many runs each. A sample of several runs is at least `sample_ns` long, so that events count little. `run_ns`:
// about what a run takes.
struct RoundPlan {
  int64_t samples = 0;
  int64_t runs = 0;

  friend bool operator==(const RoundPlan&, const RoundPlan&) = default;
};
RoundPlan PlanRound(int64_t run_ns, int64_t samples, int64_t sample_ns, int64_t round_ns);

}  // namespace geopipe
