#include <absl/status/statusor.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/split_backward.h"

namespace geopipe {
namespace {

struct Pattern {
  int64_t forward, input_grad, weight_grad;
};

// Ideal proportions that compete with the true ones. Around the fold the greedy choice falls into a regular pattern
// when the durations divide each other, and out of it by small differences when they do not.
constexpr Pattern kPatterns[] = {{1, 1, 1}, {2, 2, 1}, {3, 3, 2}};

}  // namespace

absl::StatusOr<Schedule> MakeZbV(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                 const ScheduleCosts& costs) {
  GP_ASSIGN_OR_RETURN(SplitCosts split, ResolveCosts("zb-v", shape, costs, 2));
  ForgetCrossings(split);
  const auto devices = static_cast<size_t>(shape.devices);
  const SplitLimits limits{.in_flight = std::vector<int64_t>(devices, std::numeric_limits<int64_t>::max()),
                           .units = std::vector<int64_t>(devices, int64_t{2} * shape.devices * kActivationUnits)};
  TimedSchedule best = BestOfSlacks(shape, split, limits);
  for (const Pattern& pattern : kPatterns) {
    SplitCosts ideal = split;
    std::ranges::fill(ideal.forward_ns, pattern.forward);
    std::ranges::fill(ideal.input_grad_ns, pattern.input_grad);
    std::ranges::fill(ideal.weight_grad_ns, pattern.weight_grad);
    KeepBetter(best, Timed(ScheduleGreedily(shape, ideal, limits, 0).schedule, split));
  }
  return std::move(best.schedule);
}

}  // namespace geopipe
