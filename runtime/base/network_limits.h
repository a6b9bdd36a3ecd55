// Limits of the data plane: ports that a firewall can name, and a network that strangers do not reach.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace geopipe {

struct PortRange {
  uint16_t first = 0;  // 0: any free port
  uint16_t last = 0;

  int32_t count() const { return first == 0 ? 0 : last - first + 1; }
};

// "47000-47063"; "" is any free port.
absl::StatusOr<PortRange> ParsePortRange(std::string_view text);

struct Ipv4Network {
  uint32_t address = 0;  // host byte order; no bit beyond the prefix
  int32_t prefix_bits = 32;

  // `ip`: dotted, like 10.20.3.4; false for anything else.
  bool Contains(std::string_view ip) const;
};

// "10.20.0.0/16"; a prefix has at least 8 bits.
absl::StatusOr<Ipv4Network> ParseIpv4Network(std::string_view text);

struct NetworkLimits {
  std::optional<Ipv4Network> private_network = {};  // empty: the loopback device alone
  PortRange ports = {};                             // to listen on
};

}  // namespace geopipe
