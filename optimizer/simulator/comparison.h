// A plan against what was measured: where they part, and what that does to the iteration.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// One iteration of a real pipeline, all times on one clock, from the begin of device 0's first action.
struct MeasuredIteration {
  int64_t iteration = 0;
  int64_t duration_ns = 0;                          // to device 0's next iteration's first action
  std::vector<std::vector<ActionTiming>> timeline;  // [device][position], compute actions
  std::vector<MessageTiming> messages;              // ready = enter: handed over by the sender; in that order
};

// Sorts the actions that the workers recorded: a SEND begins when its message is handed over, a RECV when it arrived.
// `actions` are per device; messages of which one end is missing are left out.
MeasuredIteration MakeMeasuredIteration(int64_t iteration, int64_t duration_ns,
                                        const std::vector<std::vector<ActionTiming>>& actions,
                                        const PipelineShape& shape);

// Medians over micro-batches and iterations.
struct StageComparison {
  int64_t predicted_forward_ns = 0;
  int64_t measured_forward_ns = 0;
  int64_t predicted_backward_ns = 0;  // full: I + W where split
  int64_t measured_backward_ns = 0;
};

// One direction of one crossing: from the end of the producing action to the message's arrival.
struct LinkComparison {
  int32_t boundary = 0;
  bool upwards = true;  // activations; false: gradients
  int64_t predicted_ns = 0;
  int64_t measured_ns = 0;
};

struct Deviation {
  enum class Kind : uint8_t { kStage, kLink, kUpdate };
  Kind kind = Kind::kStage;
  int32_t index = 0;         // chunk, boundary, or 0
  bool upwards = true;       // links
  int64_t predicted_ns = 0;  // forward and backward of the stage, the crossing, the time between two iterations
  int64_t measured_ns = 0;
  // What this deviation alone does to the iteration: the simulation with the measured value in the predicted one's
  // place, less the prediction.
  int64_t effect_ns = 0;
};

struct PlanComparison {
  int64_t predicted_iteration_ns = 0;
  int64_t measured_iteration_ns = 0;    // median
  std::vector<StageComparison> stages;  // per chunk
  std::vector<LinkComparison> links;    // crossings, both directions
  std::vector<Deviation> deviations;    // those with a notable effect, the largest first
};

// An effect of less than this part of the predicted iteration is not notable.
inline constexpr double kNotableEffect = 0.01;

// Errors are Simulate's; InvalidArgument when nothing was measured or a device has no actions.
// REQUIRES: as Simulate; the measured iterations are of this schedule.
absl::StatusOr<PlanComparison> ComparePlan(const Schedule& schedule, const PipelineCosts& costs,
                                           std::span<const MeasuredIteration> measured);

}  // namespace geopipe
