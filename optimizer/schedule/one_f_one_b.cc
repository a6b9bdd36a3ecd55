#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeOneFOneB(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                      const ScheduleCosts& /*costs*/) {
  const std::vector<int32_t> no_crossing(static_cast<size_t>(shape.stages) - 1, 0);
  return MakeGeoPipe(shape, no_crossing, {});
}

}  // namespace geopipe
