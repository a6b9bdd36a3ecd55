// Durations in nanoseconds.
#pragma once

#include <cstdint>

namespace geopipe {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1000 * kMs;

}  // namespace geopipe
