// A lower bound by search: the shortest schedule of a few stages, those that limit the pipeline most and their
// neighbours, when all others are never in the way (reduced_pipeline.h).
#pragma once

#include <cstdint>
#include <functional>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/scheduler/state_search.h"

namespace geopipe {

struct RelaxedBoundOptions {
  int64_t known_ns = 0;  // end of the last action of a known schedule: greatest bound of interest
  int64_t actions = 0;   // the work that this may cost, in actions timed
  std::function<bool()> stop = {};
};

struct RelaxedBound {
  int64_t bound_ns = 0;  // no schedule's last action ends earlier; at most known_ns
  int64_t actions = 0;   // spent
};

// True when partial schedules of these costs can be searched: one stage per device, and memory for one micro-batch.
// REQUIRES: ValidateCosts(costs).ok().
bool StatesCanBeSearched(const PipelineCosts& costs);

// The cost of a partial schedule of `stages` stages, in actions timed.
int64_t ActionsPerState(size_t stages);

// REQUIRES: StatesCanBeSearched(costs).
RelaxedBound FindRelaxedBound(const PipelineCosts& costs, const RelaxedBoundOptions& options);

}  // namespace geopipe
