#include "optimizer/simulator/lower_bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "optimizer/simulator/device_bound.h"
#include "optimizer/simulator/shortest_path.h"

namespace geopipe {
namespace {

// The use of one direction of one link, over all boundaries that share it.
struct LinkUse {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  int64_t way_out_ns = std::numeric_limits<int64_t>::max();
  int64_t work_ns = 0;

  void Add(int64_t use_first_ns, int64_t use_work_ns, int64_t use_way_out_ns) {
    first_ns = std::min(first_ns, use_first_ns);
    work_ns += use_work_ns;
    way_out_ns = std::min(way_out_ns, use_way_out_ns);
  }
};

int64_t LinksBoundNs(const PipelineCosts& costs, const std::vector<StagePath>& paths) {
  std::map<std::tuple<int32_t, std::string, bool>, LinkUse> links;
  for (int32_t boundary = 0; boundary + 1 < costs.shape.stages; ++boundary) {
    const BoundaryCost& cost = costs.boundaries[boundary];
    const int32_t below = costs.shape.placement[boundary];
    const int32_t above = costs.shape.placement[boundary + 1];
    if (!cost.crosses || below == above) {
      continue;
    }
    const auto link = [&](bool upwards) -> LinkUse& {
      return links[{cost.link.empty() ? boundary : -1, cost.link, upwards}];
    };
    const int64_t work_ns = costs.shape.micro_batches * cost.serialization_ns;
    const int64_t travel_ns = cost.latency_ns + cost.overhead_ns;
    const StagePath& near = paths[boundary];
    const StagePath& far = paths[boundary + 1];
    link(above > below)
        .Add(near.first_forward_ns + costs.forward_ns[boundary], work_ns,
             travel_ns + far.round_trip_ns + far.way_out_ns);
    link(below > above)
        .Add(far.first_forward_ns + far.round_trip_ns, work_ns,
             travel_ns + costs.input_grad_ns[boundary] + near.way_out_ns);
  }
  int64_t bound_ns = 0;
  for (const auto& [key, link] : links) {
    bound_ns = std::max(bound_ns, link.first_ns + link.work_ns + link.way_out_ns);
  }
  return bound_ns;
}

}  // namespace

int64_t LowerBoundNs(const PipelineCosts& costs) {
  const std::vector<StagePath> paths = ShortestPaths(costs);
  return std::max(LinksBoundNs(costs, paths), DevicesBoundNs(costs, paths, false)) + costs.epilogue_ns;
}

std::optional<int64_t> MemoryLowerBoundNs(const PipelineCosts& costs) {
  if (!costs.memory.has_value()) {
    return LowerBoundNs(costs);
  }
  if (!OneMicroBatchFits(costs)) {
    return std::nullopt;
  }
  const std::vector<StagePath> paths = ShortestPaths(costs);
  return std::max(
             {LinksBoundNs(costs, paths), DevicesBoundNs(costs, paths, false), DevicesBoundNs(costs, paths, true)}) +
         costs.epilogue_ns;
}

}  // namespace geopipe
