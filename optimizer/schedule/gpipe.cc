#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeGpipe(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                   const ScheduleCosts& /*costs*/) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  for (int32_t stage = 0; stage < shape.devices; ++stage) {
    std::vector<Action>& actions = schedule.devices[stage];
    actions.reserve(2 * static_cast<size_t>(shape.micro_batches));
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      for (int32_t micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
        actions.push_back({stage, kind, micro_batch});
      }
    }
  }
  return schedule;
}

}  // namespace geopipe
