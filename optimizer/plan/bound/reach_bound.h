// A bound for many unlike sites: the least time in which a pipeline over some of them may be done, whatever their
// order. Its links must carry all messages in that time, and the sites that such links join must work through all
// layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace geopipe {

struct ReachSite {
  int64_t ranks = 0;
  int64_t layer_ns = 0;  // of one layer and all micro-batches, on one rank
};

struct ReachLink {
  size_t a = 0;  // sites
  size_t b = 0;
  int64_t iteration_ns = 0;  // of a pipeline that crosses it, at least
};

// `limit_ns` if no walk takes less. A rank has as many layers as it works through in the time; a site is passed once,
// so one with a single link that is fast enough is at an end of the walk, of which there are two. REQUIRES: layer_ns >
// 0.
int64_t ReachBoundNs(std::span<const ReachSite> sites, std::span<const ReachLink> links, int64_t layers,
                     int64_t limit_ns);

}  // namespace geopipe
