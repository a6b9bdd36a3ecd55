#include "optimizer/schedule/lowering.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lower_device.h"

namespace geopipe {

std::vector<Action> LowerDevice(const PipelineShape& shape, std::span<const Action> actions) {
  const auto crosses_devices = [&shape](int32_t boundary) {
    return boundary >= 0 && boundary < shape.stages - 1 && shape.placement[boundary] != shape.placement[boundary + 1];
  };
  std::vector<Action> lowered;
  lowered.reserve(2 * actions.size());
  for (const Action& action : actions) {
    const auto [stage, kind, micro_batch] = action;
    const bool forward = kind == ActionKind::kForward;
    const bool backward = kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
    // Boundary stage - 1 lies below the stage, boundary stage above it.
    if (forward && crosses_devices(stage - 1)) {
      lowered.push_back({stage, ActionKind::kRecvForward, micro_batch});
    } else if (backward && crosses_devices(stage)) {
      lowered.push_back({stage, ActionKind::kRecvBackward, micro_batch});
    }
    lowered.push_back(action);
    if (forward && crosses_devices(stage)) {
      lowered.push_back({stage, ActionKind::kSendForward, micro_batch});
    } else if (backward && crosses_devices(stage - 1)) {
      lowered.push_back({stage, ActionKind::kSendBackward, micro_batch});
    }
  }
  return lowered;
}

absl::StatusOr<Schedule> Lower(const Schedule& compute_only) {
  GP_RETURN_IF_ERROR(ValidateShape(compute_only.shape));
  Schedule lowered{compute_only.shape, {}};
  lowered.devices.reserve(compute_only.devices.size());
  for (size_t device = 0; device < compute_only.devices.size(); ++device) {
    const std::vector<Action>& actions = compute_only.devices[device];
    for (size_t position = 0; position < actions.size(); ++position) {
      if (!IsCompute(actions[position].kind)) {
        return absl::InvalidArgumentError(
            fmt::format("schedule is already lowered: device {} position {} is {}; drop its communication first",
                        device, position, ToString(actions[position])));
      }
    }
    lowered.devices.push_back(LowerDevice(compute_only.shape, actions));
  }
  return lowered;
}

Schedule DropCommunication(const Schedule& lowered) {
  Schedule compute_only{lowered.shape, std::vector<std::vector<Action>>(lowered.devices.size())};
  for (size_t device = 0; device < lowered.devices.size(); ++device) {
    std::copy_if(lowered.devices[device].begin(), lowered.devices[device].end(),
                 std::back_inserter(compute_only.devices[device]),
                 [](const Action& action) { return IsCompute(action.kind); });
  }
  return compute_only;
}

}  // namespace geopipe
