// Lowering: from a compute-only schedule to the schedule that simulator and executor both run.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Inserts SEND_x right after each action whose result another device needs, and RECV_x right before each action that
// needs a message. RECV_x is where the message is *needed*: receives themselves are posted ahead by the transport
// (non-blocking, blocking) or at that very point (rendezvous). Stages on one device exchange no messages.
// InvalidArgument if the schedule already holds communication actions.
absl::StatusOr<Schedule> Lower(const Schedule& compute_only);

// The inverse: drops communication actions.
Schedule DropCommunication(const Schedule& lowered);

}  // namespace geopipe
