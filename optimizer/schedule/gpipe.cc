#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/generators.h"
#include "optimizer/schedule/linear_shape.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeGpipe(const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateLinearShape("gpipe", shape));
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
