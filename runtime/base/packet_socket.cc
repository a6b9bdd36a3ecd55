#include "runtime/base/packet_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

constexpr int kBacklog = 4;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(fmt::format("the socket path {} has {} bytes; at most {} are taken", path,
                                                  path.size(), sizeof(address.sun_path) - 1));
  }
  std::ranges::copy(path, address.sun_path);
  return address;
}

absl::StatusOr<UniqueFd> MakeSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() ? absl::StatusOr<UniqueFd>(std::move(fd)) : ErrnoStatus(errno, "cannot make a socket");
}

PacketResult ResultOf(ssize_t bytes) {
  if (bytes >= 0) {
    return PacketResult::kDone;
  }
  return errno == EAGAIN || errno == EINTR ? PacketResult::kWait : PacketResult::kClosed;
}

}  // namespace

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

absl::StatusOr<UniqueFd> ListenForPackets(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  GP_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  unlink(path.c_str());
  // Nobody connects before listen.
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot listen on {}", path));
  }
  return fd;
}

UniqueFd AcceptPackets(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    return fd;
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
    LogWarning("refused a connection of user {}", peer.uid);
    fd.Reset();
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectPackets(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  GP_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot connect to {}", path));
  }
  return fd;
}

PacketResult TrySendPacket(int fd, std::string_view packet) {
  return ResultOf(send(fd, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

PacketResult TryReceivePacket(int fd, size_t max_bytes, std::string& packet) {
  packet.resize(max_bytes + 1);
  const ssize_t bytes = recv(fd, packet.data(), packet.size(), MSG_DONTWAIT);
  packet.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return bytes == 0 ? PacketResult::kClosed : ResultOf(bytes);
}

}  // namespace geopipe
