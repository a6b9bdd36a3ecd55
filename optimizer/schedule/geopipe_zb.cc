#include <absl/status/statusor.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/split_backward.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeGeoPipeZb(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n,
                                       const ScheduleCosts& costs) {
  GP_ASSIGN_OR_RETURN(SplitCosts split, ResolveCosts("geopipe-zb", shape, costs));
  SplitLimits limits{.in_flight = InFlightOf(ScheduleKind::kGeoPipe, shape, boundary_delta_n), .units = {}};
  // Every device may use as much memory as geopipe's first, which holds most.
  limits.units.assign(limits.in_flight.size(), limits.in_flight.front() * kActivationUnits);
  TimedSchedule best = BestOfSlacks(shape, split, limits);
  if (CapsAllow(split, limits)) {
    KeepBetter(best, Timed(AlternateDelayingWeights(shape, limits), split));
    // geopipe's own order: a stage that waits for an input gradient no longer waits for the weight gradient too.
    SplitLimits at_once = limits;
    for (size_t device = 0; device < at_once.units.size(); ++device) {
      at_once.units[device] = at_once.in_flight[device] * kActivationUnits;
    }
    KeepBetter(best, Timed(AlternateDelayingWeights(shape, at_once), split));
  }
  // Counting weight gradients as whole makes memory ask for them earlier, which leaves fewer for the drain.
  CountWhole(split);
  KeepBetter(best, BestOfSlacks(shape, split, limits));
  return std::move(best.schedule);
}

}  // namespace geopipe
