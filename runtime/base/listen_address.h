// Addresses that servers of this program listen on: loopback only, until there are certificates.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

struct ListenAddress {
  std::string host;  // "127.0.0.1", "::1"
  int32_t port = 0;
};

// "127.0.0.1:7070", "[::1]:7070".
std::string ToString(const ListenAddress& address);

// host:port as the configuration's `key` has it; localhost is 127.0.0.1. InvalidArgument when it is not host:port;
// PermissionDenied when it is not loopback: without certificates anybody who reaches the port would be served.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view key, std::string_view text);

// Asks the system whether the address can be listened on, because servers in libraries say only that they could not.
// Unavailable with the system's reason.
absl::Status CheckBindable(const ListenAddress& address);

// Connects and closes at once, to wake a thread that waits for connections.
void TouchListener(const ListenAddress& address);

}  // namespace geopipe
