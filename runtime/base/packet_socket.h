// Packets between a process and its child: sockets that keep them apart, inherited by number.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace geopipe {

// Two connected ends.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePacketSockets();

absl::Status SendPacket(int fd, std::string_view packet);

// Waits for the next packet, of at most 64 KiB. Empty: the other end is closed, or this one was shut down.
std::string ReceivePacket(int fd);

// Ends the waits for packets at both ends. Any thread.
void ShutDownPackets(int fd);

}  // namespace geopipe
