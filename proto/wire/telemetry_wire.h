// Measurements to and from their messages. InvalidArgument begins with the path of the field.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "geopipe/v1/telemetry.pb.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/profile.h"

namespace geopipe {

v1::ProfileEntry ToProto(const ProfileEntry& entry);
absl::StatusOr<ProfileEntry> FromProto(const v1::ProfileEntry& message);
v1::MessageCost ToProto(const MessageCost& cost);
absl::StatusOr<MessageCost> FromProto(const v1::MessageCost& message);
v1::Profile ToProto(const Profile& profile);
absl::StatusOr<Profile> FromProto(const v1::Profile& message);
v1::MemoryPeaks ToProto(const RankMemory& memory);
absl::StatusOr<RankMemory> FromProto(const v1::MemoryPeaks& message);

// Non-negative durations; actions in the grammar of the schedule that end no earlier than they start. A loss or a
// gradient norm may be NaN or infinite: training can diverge, and the report says so.
absl::Status ValidateMessage(const v1::IterationReport& message);
absl::Status ValidateMessage(const v1::EvaluationReport& message);

}  // namespace geopipe
