// What the link shaper makes of the way to one peer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace geopipe {

// The link carries nothing from `begin_ns` to `end_ns` after the transport's creation; what is sent waits.
struct LinkOutage {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Delay and pace what this worker sends to one peer (rehearsal). All workers of this host that send over the same link
// in the same direction name the same pacer file (a small shared mapping), so that they share its bandwidth.
struct PeerShape {
  int32_t peer_rank = 0;
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // 0: unlimited
  std::string pacer_path = {};       // empty: not shared with other workers
  int64_t jitter_ns = 0;             // added to the latency, uniformly up to this; frames do not overtake each other
  uint64_t jitter_seed = 1;
  std::vector<LinkOutage> outages = {};
};

}  // namespace geopipe
