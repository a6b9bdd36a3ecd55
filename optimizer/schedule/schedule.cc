#include "optimizer/schedule/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace geopipe {
namespace {

constexpr std::array<std::string_view, 3> kCommNames = {"nonblocking", "blocking", "rendezvous"};

}  // namespace

PipelineShape PipelineShape::Of(StageLayout layout, int32_t devices, int32_t micro_batches, int32_t per_device) {
  const int32_t rounds = layout == StageLayout::kLooped ? per_device : MinStagesPerDevice(layout);
  PipelineShape shape{devices, rounds * devices, micro_batches, {}};
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    const bool back = layout == StageLayout::kFolded && stage >= devices;
    shape.placement.push_back(back ? 2 * devices - 1 - stage : stage % devices);
  }
  return shape;
}

absl::Status ValidateShape(const PipelineShape& shape) {
  if (shape.devices < 1 || shape.devices > kMaxDevices) {
    return absl::InvalidArgumentError(
        fmt::format("devices is {}: it must lie between 1 and {}", shape.devices, kMaxDevices));
  }
  if (shape.stages < 1) {
    return absl::InvalidArgumentError(fmt::format("stages is {}: it must be at least 1", shape.stages));
  }
  if (shape.micro_batches < 1) {
    return absl::InvalidArgumentError(fmt::format("micro_batches is {}: it must be at least 1", shape.micro_batches));
  }
  if (int64_t{shape.stages} * shape.micro_batches > kMaxStageMicroBatches) {
    return absl::InvalidArgumentError(fmt::format("stages * micro_batches is {} * {}: it must be at most {}",
                                                  shape.stages, shape.micro_batches, kMaxStageMicroBatches));
  }
  if (std::ssize(shape.placement) != shape.stages) {
    return absl::InvalidArgumentError(fmt::format("placement has {} entries: it needs one for each of the {} stages",
                                                  shape.placement.size(), shape.stages));
  }
  for (size_t stage = 0; stage < shape.placement.size(); ++stage) {
    if (shape.placement[stage] < 0 || shape.placement[stage] >= shape.devices) {
      return absl::InvalidArgumentError(fmt::format("placement[{}] is {}: it must be a device from 0 to {}", stage,
                                                    shape.placement[stage], shape.devices - 1));
    }
  }
  return absl::OkStatus();
}

std::string_view CommModeName(CommMode mode) { return kCommNames[static_cast<size_t>(mode)]; }

absl::StatusOr<CommMode> ParseCommMode(std::string_view name) {
  const auto* const found = std::ranges::find(kCommNames, name);
  if (found == kCommNames.end()) {
    return absl::InvalidArgumentError(
        fmt::format("unknown comm mode '{}': use one of {}", name, fmt::join(kCommNames, ", ")));
  }
  return static_cast<CommMode>(found - kCommNames.begin());
}

}  // namespace geopipe
