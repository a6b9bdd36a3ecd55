// Packets between processes of one machine: sockets that keep them apart, inherited by a child by number or named by a
// path, or by a name without a file.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
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

// --- Named by a path, or by "@" and a name that is no file's and goes with the socket, as Linux has them (unix(7),
// "abstract"); at most 107 bytes. Anybody of the machine's network namespace may connect to such a name, or take it
// first. Nothing below waits.

// Mode 0600; a socket that is left at the path is replaced. AlreadyExists when another socket has the name.
absl::StatusOr<UniqueFd> ListenForPackets(const std::string& path);

// The next connection that a process of this user has made. Not valid when there is none; another user's is closed and
// logged.
UniqueFd AcceptPackets(int listener);

// NotFound or Unavailable when nobody listens there, PermissionDenied when another user does.
absl::StatusOr<UniqueFd> ConnectPackets(const std::string& path);

// The process at the other end, as it connected or listened; 0: not known.
int64_t PeerPid(int fd);

enum class PacketResult : uint8_t { kDone, kWait, kClosed };  // kWait: when the socket is ready, try again

PacketResult TrySendPacket(int fd, std::string_view packet);

// A packet of more than `max_bytes` comes cut to one byte more, so that it can be told from others.
PacketResult TryReceivePacket(int fd, size_t max_bytes, std::string& packet);

// Sends a descriptor of an open file beside the packet; the other end gets a descriptor of its own for it.
PacketResult TrySendPacketAndFile(int fd, std::string_view packet, int file);

// `file` is not valid when the packet came without.
PacketResult TryReceivePacketAndFile(int fd, size_t max_bytes, std::string& packet, UniqueFd& file);

}  // namespace geopipe
