#include "runtime/base/network_limits.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <string>

#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

std::optional<uint32_t> Ipv4(std::string_view text) {
  in_addr address{};
  const bool valid = inet_pton(AF_INET, std::string(text).c_str(), &address) == 1;
  return valid ? std::optional<uint32_t>(ntohl(address.s_addr)) : std::nullopt;
}

uint32_t Prefix(uint32_t address, int32_t bits) { return address & ~(bits == 32 ? 0U : 0xFFFF'FFFFU >> bits); }

}  // namespace

absl::StatusOr<PortRange> ParsePortRange(std::string_view text) {
  if (text.empty()) {
    return PortRange{};
  }
  const size_t dash = text.find('-');
  const absl::StatusOr<int64_t> first = ParseInteger(text.substr(0, dash));
  const absl::StatusOr<int64_t> last = ParseInteger(dash == std::string_view::npos ? "" : text.substr(dash + 1));
  if (!first.ok() || !last.ok() || *first < 1024 || *first > *last || *last > 65'535) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a range of ports from 1024 to 65535; write it like 47000-47063", text));
  }
  return PortRange{.first = static_cast<uint16_t>(*first), .last = static_cast<uint16_t>(*last)};
}

bool Ipv4Network::Contains(std::string_view ip) const {
  const std::optional<uint32_t> other = Ipv4(ip);
  return other.has_value() && Prefix(*other, prefix_bits) == address;
}

absl::StatusOr<Ipv4Network> ParseIpv4Network(std::string_view text) {
  const size_t slash = text.find('/');
  const std::optional<uint32_t> address = Ipv4(text.substr(0, slash));
  const absl::StatusOr<int64_t> bits = ParseInteger(slash == std::string_view::npos ? "" : text.substr(slash + 1));
  if (!address.has_value() || !bits.ok() || *bits < 8 || *bits > 32 ||
      Prefix(*address, static_cast<int32_t>(*bits)) != *address) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not an IPv4 network with a prefix of 8 to 32 bits; write it like 10.20.0.0/16", text));
  }
  return Ipv4Network{.address = *address, .prefix_bits = static_cast<int32_t>(*bits)};
}

}  // namespace geopipe
