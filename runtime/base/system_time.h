// Tells whether this machine's clock can be right.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

namespace geopipe {

// Returns FailedPrecondition when the wall clock is set to before 2020, as after a start without battery or network.
// Incarnations, which tell processes from their predecessors, come from this clock.
absl::Status CheckSystemTime(int64_t unix_now_ns);

}  // namespace geopipe
