// Validation of messages on the two streams (agent to coordinator, worker to agent). One call at the gRPC adapter makes
// every part of a message safe to convert or read: InvalidArgument begins with the path of the field. The value types
// inside (jobs, plans, costs) are checked when they are converted with FromProto, not here.
#pragma once

#include <absl/status/status.h>

#include "geopipe/v1/agent_service.pb.h"
#include "geopipe/v1/worker_service.pb.h"

namespace geopipe {

absl::Status ValidateMessage(const v1::WorkerId& message);
absl::Status ValidateMessage(const v1::WorkerReport& message);
absl::Status ValidateMessage(const v1::WorkerCommand& message);
absl::Status ValidateMessage(const v1::AttachRequest& message);
absl::Status ValidateMessage(const v1::AttachResponse& message);
absl::Status ValidateMessage(const v1::AgentHello& message);
absl::Status ValidateMessage(const v1::ConnectRequest& message);
absl::Status ValidateMessage(const v1::ConnectResponse& message);

}  // namespace geopipe
