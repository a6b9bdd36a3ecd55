// Walks over which a pipeline may be fast, among many unlike sites: their links carry the messages of a micro-batch as
// fast as their devices work, with as much room as the layers need at that pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// True when all sites are alike but for their names, and all links but for theirs.
bool IsUniform(const ClusterSpec& cluster);

struct PacedWalk {
  SiteOrder sites;
  int64_t ranks = 0;         // on the fastest devices, as many as the layers need; one on each site at least
  int64_t iteration_ns = 0;  // estimated; without memory and the epilogue

  friend bool operator==(const PacedWalk&, const PacedWalk&) = default;
};

// Finds walks at the degrees of `job` (auto is 1), at the b and s where a layer takes the least time: for a few paces
// from the fastest feasible one on, walks that begin anywhere and take in, at either end and else in between, the site
// that adds most at that pace, or by chance one that adds much (by the job's seed). The estimated fastest first, at
// most `count`; of a fixed pipeline with its ranks. Empty if no site can hold a stage.
std::vector<PacedWalk> FindPacedWalks(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                      size_t count);

}  // namespace geopipe
