// A bound on the speed of the whole cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// A lower bound of every plan for the request's job that MakePlan may make: the least PipelineBoundNs over all orders
// of sites, tensor and data degrees, b, s, recompute modes and ZeRO stages that the job leaves open, with every number
// of pipeline ranks that the sites have devices for. If there are too many sites to try all orders, it takes any number
// that a walk over links can pass, each as good as the best of them, over the links with the least delays. At most
// `known_ns`, the time of some plan. REQUIRES: known_ns > 0; the job and the cluster are valid; the source is theirs.
int64_t ClusterBoundNs(const PlanRequest& request, const CostSource& source, int64_t known_ns);

// The bounds of pipelines with one stage on each rank, for each choice of degrees and each number of sites: those at
// most `within` times the least, ascending. REQUIRES: too many sites to try all orders.
struct ChainBound {
  Degrees degrees;
  int64_t sites = 0;
  int64_t bound_ns = 0;

  friend bool operator==(const ChainBound&, const ChainBound&) = default;
};
std::vector<ChainBound> ChainBounds(const PlanRequest& request, const CostSource& source, double within);

}  // namespace geopipe
