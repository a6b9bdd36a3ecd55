// Divides pipeline ranks among unlike sites.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// Divides `ranks` among sites that have room for `slots`: one on each, the others where a layer takes the least time
// (`layer_ns`), in proportion to the room among sites where it takes the same. REQUIRES: slots.size() <= ranks <= their
// sum, each at least one.
std::vector<int64_t> RanksBySpeed(int64_t ranks, std::span<const int64_t> slots, std::span<const int64_t> layer_ns);

// Places stages as PlaceStages, with `ranks` if they are given, else by speed at the job's first b, s and recompute
// mode.
absl::StatusOr<Plan> PlaceBySpeed(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                  const SiteOrder& sites, const std::vector<int64_t>& ranks = {});

}  // namespace geopipe
