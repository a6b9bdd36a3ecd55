#include "optimizer/simulator/simulator.h"

#include "optimizer/simulator/prepared_simulator.h"

namespace geopipe {

absl::StatusOr<SimulationResult> Simulate(const Schedule& schedule, const PipelineCosts& costs,
                                          const SimulationOptions& options) {
  return PreparedSimulator(costs).Simulate(schedule, options);
}

}  // namespace geopipe
