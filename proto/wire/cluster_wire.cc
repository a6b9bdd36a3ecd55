#include "proto/wire/cluster_wire.h"

#include <set>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/archive.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<DeviceSpec>& device) {
  archive("kind", device.kind, wire::CheckName);
  archive("memory_bytes", device.memory_bytes, wire::Range(1, wire::kMaxBytes));
  archive("peak_flops", device.peak_flops, wire::Finite(0));
  archive("memory_bandwidth_bytes_per_s", device.memory_bandwidth_bytes_per_s, wire::Finite(0));
  archive("intra_node_bandwidth_bytes_per_s", device.intra_node_bandwidth_bytes_per_s, wire::Finite(0));
  archive("host_bandwidth_bytes_per_s", device.host_bandwidth_bytes_per_s, wire::Finite(0));
  const auto is_share = [](std::string_view field, double value) {
    return value > 0 && value <= 1 ? absl::OkStatus() : wire::FieldError(field, value, "above 0 and at most 1");
  };
  archive("efficiency", device.efficiency, is_share);
  archive("attention_efficiency", device.attention_efficiency, is_share);
  archive("attention", device.attention);
  archive("roofline", device.roofline);
  archive("reserve_bytes", device.reserve_bytes, wire::Range(0, wire::kMaxBytes));
}

template <class Archive>
void Fields(Archive& archive, typename Archive::template Of<NetworkSpec>& network) {
  archive("bandwidth_bytes_per_s", network.bandwidth_bytes_per_s, wire::Finite(1));
  archive("latency_ns", network.latency_ns, wire::Range(0, wire::kMaxLatencyNs));
  archive("per", network.per);
}

v1::DeviceSpec ToProto(const DeviceSpec& device) { return wire::Write<v1::DeviceSpec>(device); }
absl::StatusOr<DeviceSpec> FromProto(const v1::DeviceSpec& message) { return wire::Read<DeviceSpec>(message); }

v1::NetworkSpec ToProto(const NetworkSpec& network) { return wire::Write<v1::NetworkSpec>(network); }
absl::StatusOr<NetworkSpec> FromProto(const v1::NetworkSpec& message) { return wire::Read<NetworkSpec>(message); }

namespace {

absl::Status CheckRefused(const google::protobuf::RepeatedPtrField<v1::RefusedBackend>& refused) {
  std::set<int> kinds;
  for (const v1::RefusedBackend& each : refused) {
    GP_RETURN_IF_ERROR(FromProto(each.backend()).status());
    if (!kinds.insert(each.backend()).second) {
      return wire::FieldError("backend", v1::BackendKind_Name(each.backend()), "named once");
    }
    if (each.reason().empty()) {
      return absl::InvalidArgumentError("reason is empty; say why the backend cannot be run");
    }
    GP_RETURN_IF_ERROR(wire::CheckText("reason", each.reason(), wire::kMaxTextBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateMessage(const v1::NodeSpec& message) {
  GP_RETURN_IF_ERROR(wire::CheckSiteName("site", message.site()));
  GP_RETURN_IF_ERROR(wire::CheckSiteName("node", message.node()));
  GP_RETURN_IF_ERROR(wire::CheckRange("devices", message.devices(), 1, wire::kMaxDevicesPerNode));
  if (message.has_network()) {
    GP_RETURN_IF_ERROR(wire::Under("network", FromProto(message.network()).status()));
  } else if (message.network_is_shaped()) {
    return wire::FieldError("network_is_shaped", true, "false where there is no network");
  }
  GP_RETURN_IF_ERROR(wire::CheckRange("host_memory_bytes", message.host_memory_bytes(), 0, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(wire::Under("refused_backends", CheckRefused(message.refused_backends())));
  return wire::Under("device", FromProto(message.device()).status());
}

absl::Status ValidateMessage(const v1::LinkDeclaration& message) {
  GP_RETURN_IF_ERROR(wire::CheckSiteName("to_site", message.to_site()));
  GP_RETURN_IF_ERROR(wire::CheckRange("latency_ns", message.latency_ns(), 0, wire::kMaxLatencyNs));
  return wire::CheckFinite("bandwidth_bytes_per_s", message.bandwidth_bytes_per_s(), 1);
}

absl::Status ValidateMessage(const v1::LinkMeasurement& message) {
  constexpr int64_t kMaxSamples = 1'000'000;
  for (const auto& [field, value] :
       {std::pair("latency_ns", message.latency_ns()), std::pair("latency_median_ns", message.latency_median_ns()),
        std::pair("latency_spread_ns", message.latency_spread_ns())}) {
    GP_RETURN_IF_ERROR(wire::CheckRange(field, value, 0, wire::kMaxLatencyNs));
  }
  GP_RETURN_IF_ERROR(wire::CheckRange("latency_samples", message.latency_samples(), 0, kMaxSamples));
  GP_RETURN_IF_ERROR(wire::CheckFinite("bandwidth_bytes_per_s", message.bandwidth_bytes_per_s(), 1));
  GP_RETURN_IF_ERROR(wire::CheckFinite("bandwidth_spread_bytes_per_s", message.bandwidth_spread_bytes_per_s(), 0));
  return wire::CheckRange("bandwidth_samples", message.bandwidth_samples(), 0, kMaxSamples);
}

}  // namespace geopipe
