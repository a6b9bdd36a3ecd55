// A schedule is data: one list of actions per device of the pipeline.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/schedule/action.h"

namespace geopipe {

// The stages that a device runs.
enum class StageLayout : uint8_t {
  kLinear,  // one: stage s on device s
  kLooped,  // several: stage s on device s mod P
  kFolded,  // two, there and back: stage s < P on device s, the others on device 2P - 1 - s
};

// Stages per device at least; a looped layout may have more.
constexpr int32_t MinStagesPerDevice(StageLayout layout) { return layout == StageLayout::kLinear ? 1 : 2; }

// The shape a schedule is generated for: placement[s] is the device of stage s.
struct PipelineShape {
  int32_t devices = 0;
  int32_t stages = 0;
  int32_t micro_batches = 0;
  std::vector<int32_t> placement;  // stages entries

  // MinStagesPerDevice of the layout, or `per_device` where it is looped.
  static PipelineShape Of(StageLayout layout, int32_t devices, int32_t micro_batches, int32_t per_device = 2);
  static PipelineShape Linear(int32_t devices, int32_t micro_batches) {
    return Of(StageLayout::kLinear, devices, micro_batches);
  }

  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

// Limits that keep every size computed from a shape small.
inline constexpr int32_t kMaxDevices = 65'536;
inline constexpr int64_t kMaxStageMicroBatches = int64_t{1} << 26;  // stages * micro_batches

// InvalidArgument names the field: positive counts within the limits, one placement entry per stage, each a device.
absl::Status ValidateShape(const PipelineShape& shape);

// The way in which messages cross a boundary. kNonBlocking: receives are posted ahead, and a send holds no device.
// kBlocking: a send holds its device until the message is acknowledged. kRendezvous, in the simulator alone: a message
// enters its link only when the receiver has come to the action that takes it.
enum class CommMode : uint8_t { kNonBlocking, kBlocking, kRendezvous };

// "nonblocking", "blocking", "rendezvous".
std::string_view CommModeName(CommMode mode);
absl::StatusOr<CommMode> ParseCommMode(std::string_view name);

struct Schedule {
  PipelineShape shape;
  std::vector<std::vector<Action>> devices;  // [device][position]

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace geopipe
