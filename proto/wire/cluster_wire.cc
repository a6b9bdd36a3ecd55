#include "proto/wire/cluster_wire.h"

#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/fields.h"

namespace geopipe {

v1::DeviceSpec ToProto(const DeviceSpec& device) {
  v1::DeviceSpec message;
  message.set_kind(device.kind);
  message.set_memory_bytes(device.memory_bytes);
  message.set_peak_flops(device.peak_flops);
  message.set_memory_bandwidth_bytes_per_s(device.memory_bandwidth_bytes_per_s);
  message.set_intra_node_bandwidth_bytes_per_s(device.intra_node_bandwidth_bytes_per_s);
  message.set_efficiency(device.efficiency);
  return message;
}

absl::StatusOr<DeviceSpec> FromProto(const v1::DeviceSpec& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("kind", message.kind()));
  GP_RETURN_IF_ERROR(wire::CheckRange("memory_bytes", message.memory_bytes(), 1, wire::kMaxBytes));
  GP_RETURN_IF_ERROR(wire::CheckFinite("peak_flops", message.peak_flops(), 0));
  GP_RETURN_IF_ERROR(wire::CheckFinite("memory_bandwidth_bytes_per_s", message.memory_bandwidth_bytes_per_s(), 0));
  GP_RETURN_IF_ERROR(
      wire::CheckFinite("intra_node_bandwidth_bytes_per_s", message.intra_node_bandwidth_bytes_per_s(), 0));
  if (!(message.efficiency() > 0 && message.efficiency() <= 1)) {
    return wire::FieldError("efficiency", message.efficiency(), "above 0 and at most 1");
  }
  return DeviceSpec{.kind = message.kind(),
                    .memory_bytes = message.memory_bytes(),
                    .peak_flops = message.peak_flops(),
                    .memory_bandwidth_bytes_per_s = message.memory_bandwidth_bytes_per_s(),
                    .intra_node_bandwidth_bytes_per_s = message.intra_node_bandwidth_bytes_per_s(),
                    .efficiency = message.efficiency()};
}

absl::Status ValidateMessage(const v1::NodeSpec& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("site", message.site()));
  GP_RETURN_IF_ERROR(wire::CheckName("node", message.node()));
  GP_RETURN_IF_ERROR(wire::CheckRange("devices", message.devices(), 1, wire::kMaxDevicesPerNode));
  return wire::Under("device", FromProto(message.device()).status());
}

absl::Status ValidateMessage(const v1::LinkDeclaration& message) {
  GP_RETURN_IF_ERROR(wire::CheckName("to_site", message.to_site()));
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
