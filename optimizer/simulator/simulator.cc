#include "optimizer/simulator/simulator.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstddef>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/simulator/engine.h"
#include "optimizer/simulator/memory_peaks.h"

namespace geopipe {
namespace {

// What the engine relies on to index its tables.
absl::Status CheckActions(const Schedule& schedule, const PipelineCosts& costs) {
  const PipelineShape& shape = schedule.shape;
  const bool can_split = !costs.weight_grad_ns.empty();
  for (size_t device = 0; device < schedule.devices.size(); ++device) {
    for (const Action& action : schedule.devices[device]) {
      // One comparison per bound: negative numbers wrap to large ones.
      if (static_cast<uint32_t>(action.stage) >= static_cast<uint32_t>(shape.chunks) ||
          static_cast<uint32_t>(action.micro_batch) >= static_cast<uint32_t>(shape.micro_batches) ||
          shape.placement[action.stage] != static_cast<int32_t>(device)) {
        return absl::InvalidArgumentError(
            fmt::format("action {} on device {} does not belong there: {} chunks, {} micro-batches", ToString(action),
                        device, shape.chunks, shape.micro_batches));
      }
      if (!can_split && (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kWeightGradient)) {
        return absl::InvalidArgumentError(
            fmt::format("action {} splits the backward, but the costs give no weight gradient time (weight_grad_s)",
                        ToString(action)));
      }
    }
  }
  return absl::OkStatus();
}

double BubbleRatio(const SimulationResult& result) {
  if (result.iteration_ns == 0) {
    return 0;
  }
  double busy_ns = 0;
  for (const int64_t device_busy_ns : result.busy_ns) {
    busy_ns += static_cast<double>(device_busy_ns);
  }
  return 1 - busy_ns / (static_cast<double>(result.busy_ns.size()) * static_cast<double>(result.iteration_ns));
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const Schedule& schedule, const PipelineCosts& costs,
                                          const SimulationOptions& options) {
  GP_CHECK(schedule.shape == costs.shape, "the schedule and the costs are for different pipelines");
  GP_CHECK(std::ssize(schedule.devices) == schedule.shape.devices, "{} lists for {} devices", schedule.devices.size(),
           schedule.shape.devices);
  GP_RETURN_IF_ERROR(CheckActions(schedule, costs));
  SimulationResult result;
  GP_RETURN_IF_ERROR(RunEngine(schedule, costs, options.record_timeline, result));
  result.iteration_ns += costs.epilogue_ns;
  result.bubble_ratio = BubbleRatio(result);
  if (costs.memory.has_value()) {
    result.peak_bytes = PeakBytes(schedule, *costs.memory);
    for (size_t device = 0; device < result.peak_bytes.size(); ++device) {
      result.fits = result.fits && result.peak_bytes[device] <= costs.memory->capacity_bytes[device];
    }
  }
  return result;
}

}  // namespace geopipe
