#include "optimizer/simulator/shortest_path.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {
namespace {

bool Carries(const PipelineCosts& costs, int32_t boundary) {
  return costs.shape.placement[boundary] != costs.shape.placement[boundary + 1];
}

// Time for which one message occupies the link of `boundary`.
int64_t OccupiesNs(const PipelineCosts& costs, int32_t boundary) {
  return Carries(costs, boundary) ? costs.boundaries[boundary].serialization_ns : 0;
}

}  // namespace

int64_t MessageNs(const PipelineCosts& costs, int32_t boundary) {
  const BoundaryCost& cost = costs.boundaries[boundary];
  return Carries(costs, boundary) ? cost.serialization_ns + cost.latency_ns + cost.overhead_ns : 0;
}

std::vector<StagePath> ShortestPaths(const PipelineCosts& costs) {
  const int32_t stages = costs.shape.stages;
  std::vector<StagePath> paths(static_cast<size_t>(stages));
  // The weight gradient of stage 0 follows its input gradient, micro-batch by micro-batch.
  paths[0].way_out_ns = costs.weight_grad_ns.empty() ? 0 : costs.weight_grad_ns[0];
  paths[0].forward_spacing_ns = costs.forward_ns[0];
  paths[0].backward_spacing_ns = costs.input_grad_ns[0];
  for (int32_t stage = 1; stage < stages; ++stage) {
    const StagePath& below = paths[stage - 1];
    const int64_t message_ns = MessageNs(costs, stage - 1);
    const int64_t occupies_ns = OccupiesNs(costs, stage - 1);
    StagePath& path = paths[stage];
    path.first_forward_ns = below.first_forward_ns + costs.forward_ns[stage - 1] + message_ns;
    path.way_out_ns = below.way_out_ns + costs.input_grad_ns[stage - 1] + message_ns;
    path.forward_spacing_ns = std::max({below.forward_spacing_ns, occupies_ns, costs.forward_ns[stage]});
    path.backward_spacing_ns = std::max({below.backward_spacing_ns, occupies_ns, costs.input_grad_ns[stage]});
  }
  int64_t round_trip_ns = 0;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    round_trip_ns += costs.forward_ns[stage] + costs.input_grad_ns[stage];
    paths[stage].round_trip_ns = round_trip_ns;
    round_trip_ns += stage > 0 ? 2 * MessageNs(costs, stage - 1) : 0;
  }
  return paths;
}

}  // namespace geopipe
