// All grids that a small job could have, with lower bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

struct Grid {
  int64_t bound_ns = 0;
  SiteOrder sites;
  std::vector<int64_t> ranks;  // on each of them
  Degrees degrees;
  MemoryMode mode = {};  // of all ranks
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  StageChoice stages = {};
};

// Every grid of the request whose bound is below `worth_ns`, with the same recompute mode on all pipeline ranks.
// nullopt: there are too many. May be incomplete if `stopped` says so.
std::optional<std::vector<Grid>> GridsWithin(const PlanRequest& request, const CostSource& source, int64_t worth_ns,
                                             const std::function<bool()>& stopped);

}  // namespace geopipe
