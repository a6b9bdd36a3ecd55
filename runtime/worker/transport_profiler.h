// Measures the cost of a message for this worker besides its link, for the planner's prediction.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/profile.h"
#include "runtime/base/clock.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {

// Opens two transports in this process, like those of a stage and its neighbour, which send each other messages of
// `message_bytes` (at least 4) and of a few bytes: both at about the same time, as neighbours do, and then again some
// milliseconds later, so that every message finds both ends asleep as in training. Leaves the place (site, node,
// device) unset. Holds two slots of `message_bytes` for either direction. Errors: those of opening and connecting
// transports; DeadlineExceeded when a message does not come. Takes about three seconds.
absl::StatusOr<MessageCost> ProfileTransport(int64_t message_bytes, const OpenTransport& open_transport, Clock& clock);

}  // namespace geopipe
