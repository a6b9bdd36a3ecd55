#include "proto/wire/telemetry_wire.h"

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/fields.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxProfileEntries = int64_t{1} << 20;
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

v1::PartCosts ToProto(const PartCosts& costs) {
  v1::PartCosts message;
  message.set_forward_ns(costs.forward_ns);
  message.set_input_grad_ns(costs.input_grad_ns);
  message.set_weight_grad_ns(costs.weight_grad_ns);
  return message;
}

absl::StatusOr<PartCosts> FromProto(const v1::PartCosts& message) {
  GP_RETURN_IF_ERROR(wire::CheckDuration("forward_ns", message.forward_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("input_grad_ns", message.input_grad_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("weight_grad_ns", message.weight_grad_ns()));
  return PartCosts{.forward_ns = message.forward_ns(),
                   .input_grad_ns = message.input_grad_ns(),
                   .weight_grad_ns = message.weight_grad_ns()};
}

v1::ProfileEntry ToProto(const ProfileEntry& entry) {
  v1::ProfileEntry message;
  message.set_site(entry.site);
  message.set_node(entry.node);
  message.set_device(entry.device);
  message.set_micro_batch_size(entry.micro_batch_size);
  message.set_sequence_length(entry.sequence_length);
  *message.mutable_embedding() = ToProto(entry.embedding);
  *message.mutable_block() = ToProto(entry.block);
  *message.mutable_head() = ToProto(entry.head);
  message.set_adamw_ns_per_million_parameters(entry.adamw_ns_per_million_parameters);
  return message;
}

absl::StatusOr<ProfileEntry> FromProto(const v1::ProfileEntry& message) {
  ProfileEntry entry;
  GP_RETURN_IF_ERROR(wire::CheckName("site", message.site()));
  GP_RETURN_IF_ERROR(wire::CheckName("node", message.node()));
  GP_RETURN_IF_ERROR(wire::CheckRange("device", message.device(), 0, wire::kMaxDevicesPerNode - 1));
  GP_RETURN_IF_ERROR(wire::CheckRange("micro_batch_size", message.micro_batch_size(), 1, kMaxSize));
  GP_RETURN_IF_ERROR(wire::CheckRange("sequence_length", message.sequence_length(), 1, kMaxSize));
  GP_RETURN_IF_ERROR(wire::CheckDuration("adamw_ns_per_million_parameters", message.adamw_ns_per_million_parameters()));
  GP_ASSIGN_OR_RETURN(entry.embedding, wire::Under("embedding", FromProto(message.embedding())));
  GP_ASSIGN_OR_RETURN(entry.block, wire::Under("block", FromProto(message.block())));
  GP_ASSIGN_OR_RETURN(entry.head, wire::Under("head", FromProto(message.head())));
  entry.site = message.site();
  entry.node = message.node();
  entry.device = message.device();
  entry.micro_batch_size = message.micro_batch_size();
  entry.sequence_length = message.sequence_length();
  entry.adamw_ns_per_million_parameters = message.adamw_ns_per_million_parameters();
  return entry;
}

v1::MessageCost ToProto(const MessageCost& cost) {
  v1::MessageCost message;
  message.set_site(cost.site);
  message.set_node(cost.node);
  message.set_device(cost.device);
  message.set_bytes(cost.bytes);
  message.set_whole_ns(cost.whole_ns);
  message.set_fixed_ns(cost.fixed_ns);
  return message;
}

absl::StatusOr<MessageCost> FromProto(const v1::MessageCost& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("site", message.site()));
  GP_RETURN_IF_ERROR(wire::CheckName("node", message.node()));
  GP_RETURN_IF_ERROR(wire::CheckRange("device", message.device(), 0, wire::kMaxDevicesPerNode - 1));
  GP_RETURN_IF_ERROR(wire::CheckRange("bytes", message.bytes(), 1, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(wire::CheckDuration("whole_ns", message.whole_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("fixed_ns", message.fixed_ns()));
  return MessageCost{.site = message.site(),
                     .node = message.node(),
                     .device = message.device(),
                     .bytes = message.bytes(),
                     .whole_ns = message.whole_ns(),
                     .fixed_ns = message.fixed_ns()};
}

v1::Profile ToProto(const Profile& profile) {
  v1::Profile message;
  wire::AssignMessages(profile.entries, message.mutable_entries());
  wire::AssignMessages(profile.messages, message.mutable_messages());
  return message;
}

absl::StatusOr<Profile> FromProto(const v1::Profile& message) {
  Profile profile;
  GP_ASSIGN_OR_RETURN(profile.entries, wire::ConvertMessages<ProfileEntry>("entries", message.entries(),
                                                                           kMaxProfileEntries, &FromProto));
  GP_ASSIGN_OR_RETURN(profile.messages, wire::ConvertMessages<MessageCost>("messages", message.messages(),
                                                                           kMaxProfileEntries, &FromProto));
  return profile;
}

absl::Status ValidateMessage(const v1::IterationReport& message) {
  GP_RETURN_IF_ERROR(wire::CheckRange("iteration", message.iteration(), 0, wire::kMaxInt64));
  GP_RETURN_IF_ERROR(wire::CheckRange("rank", message.rank(), 0, wire::kMaxRanks - 1));
  GP_RETURN_IF_ERROR(wire::CheckDuration("duration_ns", message.duration_ns()));
  GP_RETURN_IF_ERROR(wire::CheckDuration("busy_ns", message.busy_ns()));
  GP_RETURN_IF_ERROR(wire::CheckRange("peak_bytes", message.peak_bytes(), 0, wire::kMaxBytes));
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

absl::Status ValidateMessage(const v1::MemoryUsage& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("category", message.category()));
  GP_RETURN_IF_ERROR(wire::CheckRange("bytes", message.bytes(), 0, wire::kMaxBytes));
  return wire::CheckRange("peak_bytes", message.peak_bytes(), 0, wire::kMaxBytes);
}

}  // namespace geopipe
