#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/generators.h"

namespace geopipe {
namespace {

absl::Status ValidateInterleavedShape(const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  if (shape.chunks % shape.devices != 0) {
    return absl::InvalidArgumentError(
        fmt::format("schedule interleaved runs as many chunks on every device: {} chunks on {} devices given",
                    shape.chunks, shape.devices));
  }
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    if (shape.placement[chunk] != chunk % shape.devices) {
      return absl::InvalidArgumentError(
          fmt::format("schedule interleaved runs chunk c on device c mod {}: placement[{}] is {}", shape.devices, chunk,
                      shape.placement[chunk]));
    }
  }
  if (shape.micro_batches % shape.devices != 0) {
    return absl::InvalidArgumentError(
        fmt::format("schedule interleaved runs micro-batches in groups of as many as there are devices: {} "
                    "micro-batches are no multiple of {}",
                    shape.micro_batches, shape.devices));
  }
  return absl::OkStatus();
}

// The forwards (or backwards) of one device in order: groups of P micro-batches through its chunks, one after the
// other.
class GroupedOrder {
 public:
  GroupedOrder(const PipelineShape& shape, int32_t device, ActionKind kind)
      : devices_(shape.devices), chunks_per_device_(shape.chunks / shape.devices), device_(device), kind_(kind) {}

  Action At(int64_t index) const {
    const int64_t group_size = int64_t{devices_} * chunks_per_device_;
    const int64_t group = index / group_size;
    const auto round = static_cast<int32_t>(index % group_size / devices_);
    const int32_t chunk = kind_ == ActionKind::kForward ? round : chunks_per_device_ - 1 - round;
    return {chunk * devices_ + device_, kind_, static_cast<int32_t>(group * devices_ + index % devices_)};
  }

 private:
  int32_t devices_;
  int32_t chunks_per_device_;
  int32_t device_;
  ActionKind kind_;
};

}  // namespace

absl::StatusOr<Schedule> MakeInterleaved(const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateInterleavedShape(shape));
  if (shape.chunks == shape.devices) {
    return MakeOneFOneB(shape);
  }
  const int64_t chunks_per_device = shape.chunks / shape.devices;
  const int64_t forwards = chunks_per_device * shape.micro_batches;
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  for (int32_t device = 0; device < shape.devices; ++device) {
    const GroupedOrder forward(shape, device, ActionKind::kForward);
    const GroupedOrder backward(shape, device, ActionKind::kBackward);
    const int64_t warm_up =
        std::min(forwards, 2 * int64_t{shape.devices - 1 - device} + (chunks_per_device - 1) * int64_t{shape.devices});
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
