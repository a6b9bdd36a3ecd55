// Devices whose time is kept (paced and modelled runs): they begin when they could, and not when a thread of the host
// that stands for them does.
#pragma once

#include <cstdint>

namespace geopipe {

// What threads are late is made good by the next waits, up to this. More is no lateness of a thread.
inline constexpr int64_t kMostMadeGoodNs = 100'000'000;

}  // namespace geopipe
