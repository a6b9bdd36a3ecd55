// The link to one peer, as the shaper makes it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/transport/stream/frame.h"

namespace geopipe {

// Delay and pace what this worker sends to one peer. All workers of this host that send over the same link in the same
// direction name the same pacer file (a small shared mapping), so that they share its bandwidth.
struct PeerShape {
  PeerId peer_rank = 0;
  int64_t latency_ns = 0;            // one way
  double bandwidth_bytes_per_s = 0;  // 0: unlimited
  std::string pacer_path = {};       // empty: not shared with other workers
};

}  // namespace geopipe
