// poll(2) with a deadline in nanoseconds that survives interruptions.
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>

namespace geopipe {

// Waits until one of `fds` is ready or `timeout_ns` (negative: for ever) has passed. Returns how many are ready.
int PollFor(std::span<pollfd> fds, int64_t timeout_ns);

}  // namespace geopipe
