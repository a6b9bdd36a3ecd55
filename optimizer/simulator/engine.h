// The core of the simulator: when every action starts and ends.
#pragma once

#include <absl/status/status.h>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {

// Fills iteration_ns (without the epilogue), busy_ns and, when asked for, timeline and messages.
// FailedPrecondition if the schedule deadlocks. REQUIRES: as Simulate, and every action is in range and on its device.
absl::Status RunEngine(const Schedule& schedule, const PipelineCosts& costs, bool record, SimulationResult& result);

}  // namespace geopipe
