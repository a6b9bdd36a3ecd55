// A meeting of ranks that wait for each other: a collective ends for none of them before the last has come to it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

namespace geopipe {

class Meeting {
 public:
  virtual ~Meeting() = default;
  // Reports that this rank came to its next collective at `arrived_ns` (monotonic clock). Waits, asleep, until all
  // have, and returns the time at which the last of them did. Iteration and micro-batch are the same on all ranks.
  // Errors: those of the transport; DeadlineExceeded names the rank that has not come.
  virtual absl::StatusOr<int64_t> Meet(int64_t iteration, int32_t micro_batch, int64_t arrived_ns) = 0;
};

// Meetings of one rank; null: it is alone. They outlive their users.
struct RankMeetings {
  Meeting* tensor_ranks = nullptr;  // that share every action with it
  Meeting* replicas = nullptr;      // that reduce gradients with it
};

}  // namespace geopipe
