#include "proto/wire/telemetry_wire.h"

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/archive.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxClockNs = int64_t{1} << 60;  // 36 years

absl::Status ValidateTiming(const v1::ActionTiming& timing) {
  const absl::StatusOr<Action> action = ParseAction(timing.action());
  if (!action.ok()) {
    return absl::InvalidArgumentError(fmt::format("action: {}", std::string(action.status().message())));
  }
  GP_RETURN_IF_ERROR(wire::CheckRange("start_ns", timing.start_ns(), -wire::kMaxDurationNs, wire::kMaxDurationNs));
  return wire::CheckRange("end_ns", timing.end_ns(), timing.start_ns(), wire::kMaxDurationNs);
}

}  // namespace

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<PartCosts>& costs) {
  archive("forward_ns", costs.forward_ns, wire::Duration());
  archive("input_grad_ns", costs.input_grad_ns, wire::Duration());
  archive("weight_grad_ns", costs.weight_grad_ns, wire::Duration());
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<ProfileEntry>& entry) {
  archive("site", entry.site, wire::CheckName);
  archive("node", entry.node, wire::CheckName);
  archive("device", entry.device, wire::Range(0, wire::kMaxDevicesPerNode - 1));
  archive("micro_batch_size", entry.micro_batch_size, wire::Range(1, kMaxSize));
  archive("sequence_length", entry.sequence_length, wire::Range(1, kMaxSize));
  archive("embedding", entry.embedding);
  archive("block", entry.block);
  archive("head", entry.head);
  archive("adamw_ns_per_million_parameters", entry.adamw_ns_per_million_parameters, wire::Duration());
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<MessageCost>& cost) {
  archive("site", cost.site, wire::CheckName);
  archive("node", cost.node, wire::CheckName);
  archive("device", cost.device, wire::Range(0, wire::kMaxDevicesPerNode - 1));
  archive("bytes", cost.bytes, wire::Range(1, wire::kMaxBytes));
  archive("whole_ns", cost.whole_ns, wire::Duration());
  archive("fixed_ns", cost.fixed_ns, wire::Duration());
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<Profile>& profile) {
  archive("entries", profile.entries, wire::Many(wire::kMaxEntries));
  archive("messages", profile.messages, wire::Many(wire::kMaxEntries));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<RankMemory>& memory) {
  archive("weight_bytes", memory.weights, wire::Bytes());
  archive("gradient_bytes", memory.gradients, wire::Bytes());
  archive("optimizer_bytes", memory.optimizer, wire::Bytes());
  archive("activation_bytes", memory.activations, wire::Bytes());
  archive("workspace_bytes", memory.workspace, wire::Bytes());
  archive("transport_bytes", memory.transport, wire::Bytes());
  archive("recovery_bytes", memory.recovery, wire::Bytes());
  archive("total_bytes", memory.peak, wire::Bytes());
  archive("host_bytes", memory.host, wire::Bytes());
}

v1::ProfileEntry ToProto(const ProfileEntry& entry) { return wire::Write<v1::ProfileEntry>(entry); }
v1::MessageCost ToProto(const MessageCost& cost) { return wire::Write<v1::MessageCost>(cost); }
v1::Profile ToProto(const Profile& profile) { return wire::Write<v1::Profile>(profile); }
v1::MemoryPeaks ToProto(const RankMemory& memory) { return wire::Write<v1::MemoryPeaks>(memory); }

absl::StatusOr<ProfileEntry> FromProto(const v1::ProfileEntry& message) { return wire::Read<ProfileEntry>(message); }
absl::StatusOr<MessageCost> FromProto(const v1::MessageCost& message) { return wire::Read<MessageCost>(message); }
absl::StatusOr<Profile> FromProto(const v1::Profile& message) { return wire::Read<Profile>(message); }
absl::StatusOr<RankMemory> FromProto(const v1::MemoryPeaks& message) { return wire::Read<RankMemory>(message); }

absl::Status ValidateMessage(const v1::EvaluationReport& message) {
  GP_RETURN_IF_ERROR(wire::CheckRange("iteration", message.iteration(), 0, wire::kMaxInt64));
  GP_RETURN_IF_ERROR(wire::CheckRange("rank", message.rank(), 0, wire::kMaxRanks - 1));
  return wire::CheckDuration("duration_ns", message.duration_ns());
}

absl::Status ValidateMessage(const v1::IterationReport& message) {
  GP_RETURN_IF_ERROR(wire::CheckRange("iteration", message.iteration(), 0, wire::kMaxInt64));
  GP_RETURN_IF_ERROR(wire::CheckRange("rank", message.rank(), 0, wire::kMaxRanks - 1));
  GP_RETURN_IF_ERROR(wire::CheckDuration("duration_ns", message.duration_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("busy_ns", message.busy_ns()));
  if (message.has_peaks()) {
    GP_RETURN_IF_ERROR(wire::Under("peaks", FromProto(message.peaks()).status()));
  }
  GP_RETURN_IF_ERROR(wire::CheckCount("actions", message.actions_size(), wire::kMaxActionsPerReport));
  for (int i = 0; i < message.actions_size(); ++i) {
    const absl::Status status = ValidateTiming(message.actions(i));
    if (!status.ok()) {
      return wire::Under(fmt::format("actions[{}]", i), status);
    }
  }
  GP_RETURN_IF_ERROR(wire::CheckRange("begin_ns", message.begin_ns(), 0, kMaxClockNs));
  GP_RETURN_IF_ERROR(wire::CheckCount("clocks", message.clocks_size(), wire::kMaxRanks));
  for (int i = 0; i < message.clocks_size(); ++i) {
    const v1::PeerClock& clock = message.clocks(i);
    const std::string field = fmt::format("clocks[{}]", i);
    GP_RETURN_IF_ERROR(wire::Under(field, wire::CheckRange("rank", clock.rank(), 0, wire::kMaxRanks - 1)));
    GP_RETURN_IF_ERROR(wire::Under(field, wire::CheckDuration("round_trip_ns", clock.round_trip_ns())));
    // Monotonic clocks begin when their machines do.
    GP_RETURN_IF_ERROR(wire::Under(field, wire::CheckRange("offset_ns", clock.offset_ns(), -kMaxClockNs, kMaxClockNs)));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
