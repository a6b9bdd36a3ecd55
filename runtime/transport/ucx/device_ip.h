// The address at which the data plane of this process listens, which UCX leaves to its user.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "runtime/base/network_limits.h"

namespace geopipe {

// The IPv4 address to listen on: of the first device in UCX_NET_DEVICES ("eth0", or "mlx5_0:1", whose network interface
// is looked up); where the variable is not set, the loopback's. Unavailable if the device has none. FailedPrecondition
// if it is neither the loopback nor within `private_network`: frames travel in clear, and UCX's TCP obeys whoever
// connects.
absl::StatusOr<std::string> DeviceIp(const std::optional<Ipv4Network>& private_network);

}  // namespace geopipe
