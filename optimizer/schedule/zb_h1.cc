#include <absl/status/statusor.h>

#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/split_backward.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeZbH1(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                  const ScheduleCosts& costs) {
  GP_ASSIGN_OR_RETURN(SplitCosts split, ResolveCosts("zb-h1", shape, costs));
  ForgetCrossings(split);
  CountWhole(split);
  SplitLimits limits;
  for (int32_t device = 0; device < shape.devices; ++device) {
    limits.in_flight.push_back(shape.devices - device);
    limits.units.push_back(shape.devices * kActivationUnits);
  }
  if (!CapsAllow(split, limits)) {
    return BestOfSlacks(shape, split, limits).schedule;
  }
  TimedSchedule best = Timed(AlternateDelayingWeights(shape, limits), split);
  KeepBetter(best, BestOfSlacks(shape, split, limits));
  return std::move(best.schedule);
}

}  // namespace geopipe
