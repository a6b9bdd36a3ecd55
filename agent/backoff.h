// Exponential backoff with jitter, so that many agents that lost one coordinator do not come back as one.
#pragma once

#include <cstdint>

namespace geopipe::agent {

class Backoff {
 public:
  // Delays start at `first_ns`, double up to `most_ns`, and are each drawn from the upper half of that. The same seed
  // gives the same delays.
  Backoff(int64_t first_ns, int64_t most_ns, uint64_t seed);

  // The delay before the next attempt.
  int64_t NextDelayNs();
  // After a success: delays start small again.
  void Reset() { base_ns_ = first_ns_; }

 private:
  const int64_t first_ns_;
  const int64_t most_ns_;
  int64_t base_ns_;
  uint64_t state_;
};

}  // namespace geopipe::agent
