#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

// The forwards (or backwards) of one device in order: groups of P micro-batches run through its stages, one stage after
// the other.
class GroupedOrder {
 public:
  GroupedOrder(const PipelineShape& shape, int32_t device, ActionKind kind)
      : devices_(shape.devices), stages_per_device_(shape.stages / shape.devices), device_(device), kind_(kind) {}

  Action At(int64_t index) const {
    const int64_t group_size = int64_t{devices_} * stages_per_device_;
    const int64_t group = index / group_size;
    const auto round = static_cast<int32_t>(index % group_size / devices_);
    const int32_t stage = kind_ == ActionKind::kForward ? round : stages_per_device_ - 1 - round;
    return {stage * devices_ + device_, kind_, static_cast<int32_t>(group * devices_ + index % devices_)};
  }

 private:
  int32_t devices_;
  int32_t stages_per_device_;
  int32_t device_;
  ActionKind kind_;
};

// Forwards that a device runs before its first backward, less the one that the steady state opens with.
int64_t WarmUp(int64_t devices, int64_t device, int64_t per_device, int64_t micro_batches) {
  return std::min(per_device * micro_batches, 2 * (devices - 1 - device) + (per_device - 1) * devices);
}

}  // namespace

int64_t InterleavedInFlight(const StageInFlight& at) {
  if (at.stages == at.devices) {
    return OneByOneInFlight(at);
  }
  const int64_t per_device = at.stages / at.devices;
  const int64_t group = at.stages;
  // Counts, of the first `count` forwards of the device, those of its `turn`-th stage.
  const auto of_stage = [&](int64_t count, int64_t turn) {
    return count / group * at.devices + std::clamp<int64_t>(count % group - turn * at.devices, 0, at.devices);
  };
  const int64_t turn = at.stage / at.devices;
  const int64_t back_turn = per_device - 1 - turn;
  const int64_t warm_up = WarmUp(at.devices, at.stage % at.devices, per_device, at.micro_batches);
  const int64_t last = per_device * at.micro_batches - warm_up - 1;
  if (last < 0) {
    return at.micro_batches;
  }
  // The count is greatest before the stage's backwards of a group begin, or after its forwards of a group.
  const int64_t forwards_end = ((turn + 1) * at.devices - 1 - warm_up % group + group) % group;
  int64_t most = 0;
  for (const int64_t backwards : {int64_t{0}, back_turn * at.devices, forwards_end, last}) {
    const int64_t done = std::min(backwards, last);
    most = std::max(most, of_stage(warm_up + done + 1, turn) - of_stage(done, back_turn));
  }
  return most;
}

absl::StatusOr<Schedule> MakeInterleaved(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                         const ScheduleCosts& /*costs*/) {
  if (shape.micro_batches % shape.devices != 0) {
    return absl::InvalidArgumentError(
        fmt::format("schedule interleaved runs micro-batches in groups of as many as there are devices: {} "
                    "micro-batches are not a multiple of {}",
                    shape.micro_batches, shape.devices));
  }
  if (shape.stages == shape.devices) {
    return MakeOneFOneB(shape, {}, {});
  }
  const int64_t stages_per_device = shape.stages / shape.devices;
  const int64_t forwards = stages_per_device * shape.micro_batches;
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  for (int32_t device = 0; device < shape.devices; ++device) {
    const GroupedOrder forward(shape, device, ActionKind::kForward);
    const GroupedOrder backward(shape, device, ActionKind::kBackward);
    const int64_t warm_up = WarmUp(shape.devices, device, stages_per_device, shape.micro_batches);
    std::vector<Action>& actions = schedule.devices[device];
    actions.reserve(2 * static_cast<size_t>(forwards));
    for (int64_t i = 0; i < warm_up; ++i) {
      actions.push_back(forward.At(i));
    }
    for (int64_t i = 0; i < forwards; ++i) {
      if (warm_up + i < forwards) {
        actions.push_back(forward.At(warm_up + i));
      }
      actions.push_back(backward.At(i));
    }
  }
  return schedule;
}

}  // namespace geopipe
