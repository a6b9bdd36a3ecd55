// Decides when to try again: with jitter, so that the many who lost one peer do not come back in step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "optimizer/base/splitmix64.h"

namespace geopipe {

// The delay after `failures` in a row (from 1): exponential from `first_ns` to `max_ns`, drawn from the upper half.
inline int64_t BackoffNs(int64_t first_ns, int64_t max_ns, int32_t failures, SplitMix64& random) {
  const int64_t base_ns = std::min(max_ns, first_ns << std::clamp(failures - 1, 0, 16));
  const int64_t half_ns = base_ns / 2;
  return half_ns + static_cast<int64_t>(random.Next() % static_cast<uint64_t>(half_ns + 1));
}

// A period lengthened by up to a quarter.
inline int64_t LengthenedNs(int64_t period_ns, SplitMix64& random) {
  return period_ns + static_cast<int64_t>(static_cast<double>(period_ns) * 0.25 * random.Uniform());
}

}  // namespace geopipe
