#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeSerial(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                    const ScheduleCosts& /*costs*/) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  for (int32_t stage = 0; stage < shape.devices; ++stage) {
    for (int32_t micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
      schedule.devices[stage].push_back({stage, ActionKind::kForward, micro_batch});
      schedule.devices[stage].push_back({stage, ActionKind::kBackward, micro_batch});
    }
  }
  return schedule;
}

}  // namespace geopipe
