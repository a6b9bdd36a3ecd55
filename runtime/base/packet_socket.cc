#include "runtime/base/packet_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "runtime/base/files.h"

namespace geopipe {

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MakePacketSockets() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoStatus(errno, "cannot make a pair of sockets");
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

absl::Status SendPacket(int fd, std::string_view packet) {
  return send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 ? ErrnoStatus(errno, "cannot send a packet")
                                                                  : absl::OkStatus();
}

std::string ReceivePacket(int fd) {
  std::string packet(size_t{64} << 10, '\0');
  ssize_t bytes = 0;
  do {
    bytes = recv(fd, packet.data(), packet.size(), 0);
  } while (bytes < 0 && errno == EINTR);
  packet.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return packet;
}

void ShutDownPackets(int fd) { shutdown(fd, SHUT_RDWR); }

}  // namespace geopipe
