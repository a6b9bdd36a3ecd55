#include <absl/status/statusor.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

// Micro-batches in max(1, m / P) groups as equal as they can be: P in each where P divides m, else up to 2P - 1, or all
// m in one where there are fewer than P. A group of fewer, Megatron-LM's remainder, would leave a device waiting for
// what stands behind its own wait.
class Groups {
 public:
  Groups(int64_t devices, int64_t micro_batches)
      : count_(std::max<int64_t>(1, micro_batches / devices)),
        small_(micro_batches / count_),
        larger_(micro_batches % count_) {}

  int64_t count() const { return count_; }
  // Micro-batches of a group; the first ones are the larger.
  int64_t SizeOf(int64_t group) const { return small_ + (group < larger_ ? 1 : 0); }
  int64_t Largest() const { return SizeOf(0); }
  // Micro-batches before a group.
  int64_t Before(int64_t group) const { return group * small_ + std::min(group, larger_); }
  int64_t larger() const { return larger_; }
  // The group that micro-batch `index` is in, when every micro-batch stands `each` times in a row of its group's.
  int64_t GroupOf(int64_t index, int64_t each) const {
    const int64_t in_larger = larger_ * (small_ + 1) * each;
    return index < in_larger ? index / ((small_ + 1) * each) : larger_ + (index - in_larger) / (small_ * each);
  }

 private:
  int64_t count_;
  int64_t small_;
  int64_t larger_;  // groups of small_ + 1
};

// The forwards (or backwards) of one device in order: groups of micro-batches through its stages, one after the other.
class GroupedOrder {
 public:
  GroupedOrder(const PipelineShape& shape, int32_t device, ActionKind kind)
      : groups_(shape.devices, shape.micro_batches),
        devices_(shape.devices),
        stages_per_device_(shape.stages / shape.devices),
        device_(device),
        kind_(kind) {}

  Action At(int64_t index) const {
    const int64_t group = groups_.GroupOf(index, stages_per_device_);
    const int64_t size = groups_.SizeOf(group);
    const int64_t in_group = index - groups_.Before(group) * stages_per_device_;
    const auto turn = static_cast<int32_t>(in_group / size);
    const int32_t stage = kind_ == ActionKind::kForward ? turn : stages_per_device_ - 1 - turn;
    return {stage * devices_ + device_, kind_, static_cast<int32_t>(groups_.Before(group) + in_group % size)};
  }

 private:
  Groups groups_;
  int32_t devices_;
  int32_t stages_per_device_;
  int32_t device_;
  ActionKind kind_;
};

// Forwards that a device runs before its first backward, less the one that the steady state opens with.
int64_t WarmUp(int64_t devices, int64_t device, int64_t per_device, int64_t micro_batches) {
  const int64_t group = Groups(devices, micro_batches).Largest();
  return std::min(per_device * micro_batches, 2 * (devices - 1 - device) + (per_device - 1) * group);
}

}  // namespace

int64_t InterleavedInFlight(const StageInFlight& at) {
  if (at.stages == at.devices) {
    return OneByOneInFlight(at);
  }
  const int64_t per_device = at.stages / at.devices;
  const Groups groups(at.devices, at.micro_batches);
  // Counts, among the first `count` forwards or backwards of the device, those of its stage that comes `turn`-th in
  // every group.
  const auto of_stage = [&](int64_t count, int64_t turn) {
    if (count >= per_device * at.micro_batches) {
      return at.micro_batches;
    }
    const int64_t group = groups.GroupOf(count, per_device);
    const int64_t in_group = count - groups.Before(group) * per_device;
    return groups.Before(group) + std::clamp<int64_t>(in_group - turn * groups.SizeOf(group), 0, groups.SizeOf(group));
  };
  const int64_t turn = at.stage / at.devices;
  const int64_t back_turn = per_device - 1 - turn;
  const int64_t warm_up = WarmUp(at.devices, at.stage % at.devices, per_device, at.micro_batches);
  const int64_t last = per_device * at.micro_batches - warm_up - 1;
  if (last < 0) {
    return at.micro_batches;
  }
  int64_t most = 0;
  const auto look = [&](int64_t backwards) {
    const int64_t done = std::clamp<int64_t>(backwards, 0, last);
    most = std::max(most, of_stage(warm_up + done + 1, turn) - of_stage(done, back_turn));
  };
  // The number in flight peaks just before the stage's backwards of a group, or just after its forwards of one. All
  // groups of a size are alike, except near the other size and near the end.
  constexpr int64_t kNear = 4;
  look(last);
  for (const int64_t edge : {int64_t{0}, groups.larger(), groups.count()}) {
    for (int64_t group = std::max<int64_t>(0, edge - kNear); group < std::min(groups.count(), edge + kNear); ++group) {
      const int64_t begin = groups.Before(group) * per_device;
      look(begin + back_turn * groups.SizeOf(group));
      look(begin + (turn + 1) * groups.SizeOf(group) - warm_up - 1);
    }
  }
  return most;
}

absl::StatusOr<Schedule> MakeInterleaved(const PipelineShape& shape, std::span<const int32_t> /*boundary_delta_n*/,
                                         const ScheduleCosts& /*costs*/) {
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
