// Limits how long to wait for others.
#pragma once

#include <algorithm>
#include <cstdint>

namespace geopipe {

// Caps every wait, so that sums of waits do not overflow.
inline constexpr int64_t kMaxPatienceNs = int64_t{100} * 24 * 3600 * 1'000'000'000;

// Returns how long work that is predicted to take `predicted_ns` may take before it counts as stuck: ten times that, at
// most kMaxPatienceNs. The prediction is a double, so that a sum of several does not overflow on its way here.
inline int64_t PatienceNs(double predicted_ns) {
  return static_cast<int64_t>(std::min(static_cast<double>(kMaxPatienceNs), 10 * std::max(0.0, predicted_ns)));
}

}  // namespace geopipe
