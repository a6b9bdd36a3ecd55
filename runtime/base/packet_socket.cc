#include "runtime/base/packet_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

constexpr int kBacklog = 4;

bool HasNoFile(const std::string& path) { return path.starts_with('@'); }

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(fmt::format("the socket path {} has {} bytes; at most {} are taken", path,
                                                  path.size(), sizeof(address.sun_path) - 1));
  }
  std::ranges::copy(path, address.sun_path);
  if (HasNoFile(path)) {
    address.sun_path[0] = '\0';
  }
  return address;
}

// A name without a file is all bytes that are given, zeros at the end among them; a path ends at the first of those.
socklen_t Size(const std::string& path) {
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (HasNoFile(path) ? 0 : 1));
}

absl::StatusOr<UniqueFd> MakeSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() ? absl::StatusOr<UniqueFd>(std::move(fd)) : ErrnoStatus(errno, "cannot make a socket");
}

// True when the process at the other end, as it connected or listened, is this user's.
bool IsOfThisUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid()) {
    return true;
  }
  LogWarning("refused a connection of user {}", peer.uid);
  return false;
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
  const bool has_file = !HasNoFile(path);
  if (has_file) {
    unlink(path.c_str());
  }
  // Connections are not possible before listen, so the mode is set in time.
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), Size(path)) != 0 ||
      (has_file && chmod(path.c_str(), 0600) != 0) || listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(fmt::format("cannot listen on {}: another socket has this name", path));
    }
    return ErrnoStatus(errno, fmt::format("cannot listen on {}", path));
  }
  return fd;
}

UniqueFd AcceptPackets(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid() && !IsOfThisUser(fd.get())) {
    fd.Reset();
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectPackets(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  GP_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), Size(path)) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot connect to {}", path));
  }
  if (!IsOfThisUser(fd.get())) {
    return absl::PermissionDeniedError(fmt::format("cannot connect to {}: another user listens there", path));
  }
  return fd;
}

int64_t PeerPid(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
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

PacketResult TrySendPacketAndFile(int fd, std::string_view packet, int file) {
  iovec bytes{.iov_base = const_cast<char*>(packet.data()), .iov_len = packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  return ResultOf(sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

PacketResult TryReceivePacketAndFile(int fd, size_t max_bytes, std::string& packet, UniqueFd& file) {
  packet.resize(max_bytes + 1);
  iovec bytes{.iov_base = packet.data(), .iov_len = packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // for one descriptor; of more the kernel closes the others
  const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  packet.resize(got > 0 ? static_cast<size_t>(got) : 0);
  file.Reset();
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof(received));
    file.Reset(received);
  }
  return got == 0 ? PacketResult::kClosed : ResultOf(got);
}

}  // namespace geopipe
