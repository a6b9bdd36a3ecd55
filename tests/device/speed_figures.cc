#include "tests/device/speed_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

// The value below which a share of the samples lies, which are in order: between two of them, in proportion.
double Percentile(const std::vector<double>& samples, double share) {
  const double place = share * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (place - static_cast<double>(below)) * (samples[above] - samples[below]);
}

std::string Number(double value) { return value > 0 ? fmt::format("{:.4g}", value) : ""; }

}  // namespace

Figure FigureOf(std::vector<double> samples_us) {
  GP_CHECK(!samples_us.empty(), "a figure of no samples");
  std::ranges::sort(samples_us);
  return {.median_us = Percentile(samples_us, 0.5),
          .spread_us = Percentile(samples_us, 0.9) - Percentile(samples_us, 0.1)};
}

const std::vector<std::string>& SpeedColumns() {
  static const std::vector<std::string> columns = {"name",  "shape", "type",        "us",       "us_spread",
                                                   "flops", "bytes", "tflop_per_s", "gb_per_s", "percent_of_ceiling",
                                                   "note"};
  return columns;
}

std::vector<std::string> CellsOf(const SpeedRow& row, const Ceilings& ceilings) {
  using Against = SpeedRow::Against;
  const double ceiling = row.against == Against::kProducts ? ceilings.flops_per_s
                         : row.against == Against::kCopies ? ceilings.copy_bytes_per_s
                                                           : 0;
  const double rate = row.against == Against::kProducts ? row.flops_per_s() : row.bytes_per_s();
  return {row.name,
          row.shape,
          row.type,
          fmt::format("{:.2f}", row.figure.median_us),
          fmt::format("{:.2f}", row.figure.spread_us),
          row.flops > 0 ? std::to_string(row.flops) : "",
          row.bytes > 0 ? std::to_string(row.bytes) : "",
          Number(row.flops_per_s() / 1e12),
          Number(row.bytes_per_s() / 1e9),
          ceiling > 0 ? fmt::format("{:.1f}", 100 * rate / ceiling) : "",
          row.note};
}

std::vector<std::string> CellsOf(std::string_view name, std::string_view note) {
  std::vector<std::string> cells(SpeedColumns().size());
  cells.front() = name;
  cells.back() = note;
  return cells;
}

int64_t SetsOf(int64_t operand_bytes, int64_t cache_bytes) {
  if (operand_bytes >= 4 * cache_bytes) {
    return 1;
  }
  constexpr int64_t kMinSets = 2;
  return std::max(kMinSets, 2 * cache_bytes / operand_bytes + 1);
}

RoundPlan PlanRound(int64_t run_ns, int64_t samples, int64_t sample_ns, int64_t round_ns) {
  constexpr int64_t kMaxRuns = 64;
  constexpr int64_t kMinSamples = 3;
  const int64_t run = std::max<int64_t>(run_ns, 1);
  RoundPlan plan;
  plan.runs = std::clamp<int64_t>((sample_ns + run - 1) / run, 1, kMaxRuns);
  plan.samples = std::clamp(round_ns / (plan.runs * run), std::min(kMinSamples, samples), samples);
  return plan;
}

}  // namespace geopipe
