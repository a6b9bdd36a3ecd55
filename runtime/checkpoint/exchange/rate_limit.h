// A token bucket: limits how fast files arrive, so that they take no more of a link than their share. Has no clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace geopipe {

class RateLimit {
 public:
  // 0: no limit.
  explicit RateLimit(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Takes `bytes` that have arrived by `now_ns`. Returns the time before which no more are to be taken.
  int64_t Take(int64_t now_ns, int64_t bytes) {
    if (bytes_per_second_ <= 0) {
      return now_ns;
    }
    // A thread that wakes up late catches up, but a long rest does not become a burst.
    next_ns_ = std::max(next_ns_, now_ns - kCatchUpNs) +
               static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / bytes_per_second_);
    return next_ns_;
  }

 private:
  static constexpr int64_t kCatchUpNs = 100'000'000;

  double bytes_per_second_;
  int64_t next_ns_ = 0;
};

}  // namespace geopipe
