#include <absl/status/statusor.h>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/split_backward.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeZbH2(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                  const ScheduleCosts& costs) {
  GP_ASSIGN_OR_RETURN(SplitCosts split, ResolveCosts("zb-h2", shape, costs));
  ForgetCrossings(split);
  SplitLimits limits;
  for (int32_t device = 0; device < shape.devices; ++device) {
    limits.in_flight.push_back(int64_t{2} * (shape.devices - device));
    limits.units.push_back(int64_t{2} * shape.devices * kActivationUnits);
  }
  return BestOfSlacks(shape, split, limits).schedule;
}

}  // namespace geopipe
