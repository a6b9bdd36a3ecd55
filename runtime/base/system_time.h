// Tells whether this machine's clock can be right.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

namespace geopipe {

// FailedPrecondition: the wall clock is set to before 2020, as after a start without battery or network. Incarnations,
// by which processes are told from their predecessors, are taken from it.
absl::Status CheckSystemTime(int64_t unix_now_ns);

}  // namespace geopipe
