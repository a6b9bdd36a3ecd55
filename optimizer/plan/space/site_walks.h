// Of many unlike sites, the walks over which a pipeline may be fast: whose links carry the messages of a micro-batch as
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

// Whether all sites are alike but for their names, and all links but for theirs.
bool IsUniform(const ClusterSpec& cluster);

struct PacedWalk {
  SiteOrder sites;
  int64_t ranks = 0;         // on the fastest devices, as many as the layers need; one on each site at least
  int64_t iteration_ns = 0;  // about; without regard to memory and to what ends the iteration

  friend bool operator==(const PacedWalk&, const PacedWalk&) = default;
};

// At the degrees of `job` (auto is 1), at the b and s where a layer takes the least time: for a few paces from the
// fastest that is found on, walks that begin anywhere and take in, at either end and else in between, the site that
// adds most at that pace, or adds much by chance (by the job's seed). The estimated fastest first, at most `count`; of
// a fixed pipeline with its ranks. Empty where no site is able.
std::vector<PacedWalk> FindPacedWalks(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                      size_t count);

}  // namespace geopipe
