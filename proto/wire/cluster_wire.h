// Devices and links to and from their messages. InvalidArgument begins with the path of the field.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "geopipe/v1/cluster.pb.h"
#include "optimizer/model/cluster.h"

namespace geopipe {

v1::DeviceSpec ToProto(const DeviceSpec& device);
// Memory is positive, every figure finite and not negative, efficiency above 0 and at most 1.
absl::StatusOr<DeviceSpec> FromProto(const v1::DeviceSpec& message);

v1::NetworkSpec ToProto(const NetworkSpec& network);
// Bandwidth at least one byte per second, latency from 0 to a minute.
absl::StatusOr<NetworkSpec> FromProto(const v1::NetworkSpec& message);

// A node as its agent registers it: names given, at least one device, a valid DeviceSpec; NetworkSpec, where it has
// one; every refused backend is known, named once, and has a reason.
absl::Status ValidateMessage(const v1::NodeSpec& message);
// Latency from 0 to a minute, bandwidth at least one byte per second.
absl::Status ValidateMessage(const v1::LinkDeclaration& message);
// Times from 0 to a minute, bandwidth at least one byte per second, spreads finite and not negative.
absl::Status ValidateMessage(const v1::LinkMeasurement& message);

}  // namespace geopipe
