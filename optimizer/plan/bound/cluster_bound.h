// How fast the cluster could be at best.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// A lower bound of every plan for the request's job that MakePlan may make: the least PipelineBoundNs over all orders
// of sites, tensor and data degrees, b, s, recompute modes and ZeRO stages that the job leaves open, with every number
// of pipeline ranks that the sites have devices for. Of more sites than those of which all orders are tried it takes
// any number that a walk over links can pass, each as good as the best of them, over the links with the least delays.
// At most `known_ns`, what some plan takes. REQUIRES: known_ns > 0; the job and the cluster are valid; the source is
// theirs.
int64_t ClusterBoundNs(const PlanRequest& request, const CostSource& source, int64_t known_ns);

// The same of pipelines with one stage on each rank, for each choice of degrees and each number of sites: those whose
// bound is at most `within` times the least, ascending. REQUIRES: more sites than those of which all orders are tried.
struct ChainBound {
  Degrees degrees;
  int64_t sites = 0;
  int64_t bound_ns = 0;

  friend bool operator==(const ChainBound&, const ChainBound&) = default;
};
std::vector<ChainBound> ChainBounds(const PlanRequest& request, const CostSource& source, double within);

}  // namespace geopipe
