// Devices whose time is kept (paced, modelled): their actions begin when these could, even if the thread that stands
// for the device wakes up later.
#pragma once

#include <cstdint>

namespace geopipe {

// Scheduling delays up to this are compensated; longer ones are treated as real.
inline constexpr int64_t kMaxCompensatedNs = 100'000'000;

}  // namespace geopipe
