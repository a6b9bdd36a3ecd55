// Compares a plan with its measurement: where they differ, and what that does to the iteration.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/measured_iteration.h"

namespace geopipe {

// Medians over micro-batches and iterations.
struct StageComparison {
  int64_t predicted_forward_ns = 0;
  int64_t measured_forward_ns = 0;
  int64_t predicted_backward_ns = 0;  // full: I + W where split
  int64_t measured_backward_ns = 0;
};

// One direction of one boundary: from the end of the producing action to the message's arrival.
struct LinkComparison {
  int32_t boundary = 0;
  bool upwards = true;  // activations; false: gradients
  int64_t predicted_ns = 0;
  int64_t measured_ns = 0;
};

struct Deviation {
  // The stage computes more slowly; a crossing takes longer; the stage's next action waits for sends that should not
  // hold it; it begins late although its input is there and its device free; the time between two iterations is longer.
  enum class Kind : uint8_t { kStage, kLink, kSender, kReceiver, kUpdate };
  Kind kind = Kind::kStage;
  int32_t index = 0;         // stage, boundary, or 0
  bool upwards = true;       // links
  int64_t predicted_ns = 0;  // forward and backward of the stage, the crossing, the delay of one action, the time
  int64_t measured_ns = 0;   // between two iterations
  // Effect of this deviation alone on the iteration: the simulation with the measured value instead of the predicted
  // one, less the prediction.
  int64_t effect_ns = 0;
};

struct PlanComparison {
  int64_t predicted_iteration_ns = 0;
  int64_t measured_iteration_ns = 0;  // median
  // Bound that 95 % of an iteration's compute actions keep between their measured and predicted begins; median of the
  // iterations after warm-up.
  int64_t start_error_p95_ns = 0;
  std::vector<StageComparison> stages;  // per stage
  std::vector<LinkComparison> links;    // boundaries that cost anything, both directions
  std::vector<Deviation> deviations;    // those with a notable effect, the largest first
};

// Part of the predicted iteration below which an effect is not notable.
inline constexpr double kNotableEffect = 0.01;

// Errors are Simulate's; InvalidArgument when nothing was measured or a device has no actions.
// REQUIRES: as Simulate; the measured iterations are of this schedule.
absl::StatusOr<PlanComparison> ComparePlan(const Schedule& schedule, const PipelineCosts& costs,
                                           std::span<const MeasuredIteration> measured);

}  // namespace geopipe
