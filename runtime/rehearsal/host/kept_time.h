// Devices whose time is kept (paced, modelled): they begin when they could, and not when the thread that stands for
// them comes to it.
#pragma once

#include <cstdint>

namespace geopipe {

// Scheduling delays up to this are compensated; longer ones are treated as real.
inline constexpr int64_t kMaxCompensatedNs = 100'000'000;

}  // namespace geopipe
