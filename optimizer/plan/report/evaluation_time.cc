#include "optimizer/plan/report/evaluation_time.h"

#include <algorithm>
#include <string>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/schedule/forward_only.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

// Time of so many passes in a row.
int64_t PassesNs(const PlanResult& result, int32_t passes) {
  PipelineCosts costs = result.costs;
  const int32_t micro_batches = costs.shape.micro_batches;
  costs.shape.micro_batches *= passes;
  costs.epilogue_ns = 0;
  costs.memory.reset();
  const Schedule pass = ForwardOnly(result.schedule);
  Schedule all{costs.shape, std::vector<std::vector<Action>>(pass.devices.size())};
  for (size_t device = 0; device < pass.devices.size(); ++device) {
    for (int32_t i = 0; i < passes; ++i) {
      for (Action action : pass.devices[device]) {
        action.micro_batch += i * micro_batches;
        all.devices[device].push_back(action);
      }
    }
  }
  const absl::StatusOr<SimulationResult> simulated = Simulate(all, costs);
  GP_CHECK(simulated.ok(), "{}", std::string(simulated.status().message()));
  return simulated->iteration_ns;
}

// Time in which the slots of the slowest crossing come back to carry an iteration's activations: a forward is begun
// when an activation that was sent as many forwards ago as there are slots is known to have arrived.
int64_t SlotsNs(const PlanResult& result) {
  const std::vector<int64_t> slots = InFlightOfSchedule(result.schedule);
  int64_t longest_ns = 0;
  for (size_t boundary = 0; boundary < result.costs.boundaries.size(); ++boundary) {
    const BoundaryCost& cost = result.costs.boundaries[boundary];
    const int64_t round_trip_ns =
        result.costs.forward_ns[boundary] + 2 * cost.latency_ns + cost.serialization_ns + cost.overhead_ns;
    longest_ns =
        std::max(longest_ns, round_trip_ns * result.costs.shape.micro_batches / std::max<int64_t>(1, slots[boundary]));
  }
  return longest_ns;
}

}  // namespace

int64_t EvaluationPassNs(const PlanResult& result) {
  return std::max(PassesNs(result, 2) - PassesNs(result, 1), SlotsNs(result));
}

}  // namespace geopipe
