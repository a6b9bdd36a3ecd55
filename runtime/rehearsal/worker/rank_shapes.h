// The rehearsed links of one rank, by the peers that it reaches over them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/plan/plan_params.h"
#include "runtime/rehearsal/link/peer_shape.h"

namespace geopipe {

// Shapes of the links to the ranks of its pipeline at other sites and on other nodes of its own, as `links` says. The
// plan's costs contain the time of its collectives on these links.
//
// The pipelines of the grid send over a link at the same times, and equally much. Each has its share of the bandwidth
// and a pacer of its own, whether or not the others send: a plan counts on their sending together. In one queue for
// all, chance on this host would let one get ahead of the others, and they would not send together any more. REQUIRES:
// `rank` lies in the plan's grid.
std::vector<PeerShape> ShapesOfRank(const Plan& plan, std::span<const v1::LinkShape> links, int32_t rank);

}  // namespace geopipe
