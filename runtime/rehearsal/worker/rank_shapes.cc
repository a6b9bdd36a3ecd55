#include "runtime/rehearsal/worker/rank_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace geopipe {
namespace {

// True when the link, or the network of a site between its nodes, joins the two ranks.
bool IsBetween(const Plan& plan, const v1::LinkShape& link, int32_t rank, int32_t peer) {
  const bool joins = link.from_site() == plan.SiteOfRank(rank) && link.to_site() == plan.SiteOfRank(peer);
  return joins && (link.from_site() != link.to_site() || plan.devices[rank].node != plan.devices[peer].node);
}

// Number of pipelines that send over the link at the same times as the rank's: over a node's network, those of its
// stage.
int64_t Sharers(const Plan& plan, const v1::LinkShape& link, int32_t rank) {
  if (link.from_site() != link.to_site()) {
    return int64_t{plan.grid.data} * plan.grid.tensor;
  }
  return link.is_per_device() ? 1
                              : std::ranges::count(plan.DevicesOf(plan.grid.At(rank).pipeline), plan.devices[rank].node,
                                                   &DevicePlace::node);
}

}  // namespace

std::vector<PeerShape> ShapesOfRank(const Plan& plan, std::span<const v1::LinkShape> links, int32_t rank) {
  std::vector<PeerShape> shapes;
  for (const int32_t peer : plan.grid.PipelineOf(rank)) {
    for (const v1::LinkShape& link : links) {
      if (!IsBetween(plan, link, rank, peer)) {
        continue;
      }
      const int64_t sharers = Sharers(plan, link, rank);
      PeerShape& shape = shapes.emplace_back(
          PeerShape{.peer_rank = peer,
                    .latency_ns = link.latency_ns(),
                    .bandwidth_bytes_per_s = link.bandwidth_bytes_per_s() / static_cast<double>(sharers),
                    .pacer_path = link.pacer_path()});
      if (sharers > 1 && !shape.pacer_path.empty()) {
        shape.pacer_path += fmt::format("-{}", rank % (plan.grid.data * plan.grid.tensor));
      }
    }
  }
  return shapes;
}

}  // namespace geopipe
