// The rehearsed links of one rank: which of its peers it reaches over what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/plan/plan_params.h"
#include "runtime/rehearsal/link/peer_shape.h"

namespace geopipe {

// Of the ranks of its pipeline those that `links` lie before: at other sites, and on other nodes of its own. What its
// collectives take on their way, the plan's costs say.
//
// The pipelines of the grid send over a link at the same times and as much. Each has its part of the bandwidth and a
// pacer of its own, whether the others send or not: as much as they leave each other when they send together, which is
// what a plan counts on. In one queue for all, one would get ahead of the others by the moods of the host, and they
// would not send together any more. REQUIRES: `rank` lies in the plan's grid.
std::vector<PeerShape> ShapesOfRank(const Plan& plan, std::span<const v1::LinkShape> links, int32_t rank);

}  // namespace geopipe
