// Measures what a message costs this worker besides its link, for the planner's prediction.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/profile.h"
#include "runtime/base/clock.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {

// Two transports of this process, as a stage and its neighbour open them, send each other messages of `message_bytes`
// (at least 4) and of next to none: both at about the same time, as neighbours do, and then some milliseconds later
// again, so that every message finds both ends asleep as in training. Of the place (site, node, device) nothing is set.
// Holds two slots of `message_bytes` for either direction. Errors: those of opening and connecting transports;
// DeadlineExceeded when a message does not come. Takes about three seconds.
absl::StatusOr<MessageCost> ProfileTransport(int64_t message_bytes, const OpenTransport& open_transport, Clock& clock);

}  // namespace geopipe
