// A lower bound on iteration_ns that holds for every schedule of the same costs.
#pragma once

#include <cstdint>

#include "optimizer/model/pipeline_costs.h"

namespace geopipe {

// For each device and each directed link: earliest possible first use + all of its work (of all boundaries that share a
// link) + shortest way out after the last; with a split backward the way out follows I only. Includes the epilogue.
// REQUIRES: ValidateCosts(costs).ok().
int64_t LowerBoundNs(const PipelineCosts& costs);

}  // namespace geopipe
