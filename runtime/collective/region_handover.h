// Hands a region from a group's first rank to the others, through a socket whose name only those can tell who know the
// group's secret. Both ends belong to one user and prove to each other, with fresh numbers, that they know the secret,
// so that neither a stranger nor a process of another epoch, which has another secret, joins.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/stop_event.h"
#include "runtime/collective/shared_region.h"

namespace geopipe {

struct Handover {
  std::string group;        // its name in the job and epoch, the same on all ranks
  std::string secret;       // of the epoch; never travels
  int32_t rank = 0;         // in the group
  int32_t size = 0;         // at least 2
  int64_t deadline_ns = 0;  // monotonic
  Clock* clock = &Clock::Real();
  const StopEvent* stop = &StopEvent::Never();  // outlives the handover
};

// Rank 0 makes the region, and returns when all others have it; the others receive it. DeadlineExceeded names the ranks
// that have not come; AlreadyExists: this group has another first rank already; PermissionDenied: the other end does
// not know the secret, or is another user's; Cancelled: it was stopped.
absl::StatusOr<SharedRegion> ShareRegion(const Handover& handover);

}  // namespace geopipe
