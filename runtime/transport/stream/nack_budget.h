// Bounds how many chunks are asked for again, and how many are sent again because they were asked for. A link that
// damages every frame, and a peer that asks for everything, thus cost this much and no more; what is beyond it counts
// as lost when acknowledgements show it, as if there were no nacks. Has no clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace geopipe {

class NackBudget {
 public:
  static constexpr int64_t kAtOnce = 64;
  static constexpr int64_t kIntervalNs = 10'000'000;  // of one more

  // True when one more is within the budget; then it is spent. `now_ns` never falls.
  bool Take(int64_t now_ns) {
    const int64_t spent_until_ns = std::max(spent_until_ns_, now_ns) + kIntervalNs;
    if (spent_until_ns - now_ns > kAtOnce * kIntervalNs) {
      return false;
    }
    spent_until_ns_ = spent_until_ns;
    return true;
  }

 private:
  int64_t spent_until_ns_ = 0;  // by when all that was spent is there again
};

}  // namespace geopipe
