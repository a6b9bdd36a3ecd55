// A plan's iteration, part by part: from the plain work, spread over every device at its stated efficiency, to its full
// time.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

enum class TimePart : uint8_t {
  // The matrix products of forward and backward on all of the cluster's devices at their stated efficiency
  // (PlanFigures::work_ns); if a site does not give its figures, all work of its stages that is not listed below.
  kPlainWork,
  kIdleDevices,       // the same products on the devices in use alone
  kBelowEfficiency,   // products of few rows, memory traffic, operations that only move elements; what was measured
  kTensor,            // tensor-parallel collectives, as the cost model counts them
  kRecomputation,     // forward work done again, with its collectives
  kFill,              // until a rank's first backward: way through the pipeline and back
  kDrain,             // after a rank's last forward
  kCrossings,         // steady phase: waiting for messages on their way over a crossing, or held by a blocking send
  kImbalance,         // steady phase: waiting for a slower rank; work that is not in proportion to the devices' speeds
  kExposedReduction,  // gradients reduced over replicas, and updated weights gathered, as far as they are exposed
  kUpdate,            // AdamW
  kSynchronisation,   // gradient norm and tied gradients: waiting for the other end of the pipeline
};
// "plain_work", "idle_devices", "below_efficiency", …
std::string_view TimePartName(TimePart part);

struct TimeShare {
  TimePart part = TimePart::kPlainWork;
  double ns = 0;  // of the mean device in use; below 0 only where rounding and unequal sites shift time between parts
};

// One of each part, in their order; together they are the iteration. A device's work is from the plan's costs; its
// waiting is attributed as in FindIdleCauses; each part of the epilogue is the time by which the iteration would be
// shorter without it, the reduction first. `simulated` is the recorded simulation of the result's schedule. Errors as
// CostsOfPlan's. REQUIRES: the plan was made for the job on the source's cluster.
absl::StatusOr<std::vector<TimeShare>> BreakDownTime(const JobSpec& job, const ClusterSpec& cluster,
                                                     const CostSource& source, const PlanResult& result,
                                                     const SimulationResult& simulated);

}  // namespace geopipe
