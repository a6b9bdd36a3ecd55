#include "runtime/transport/loopback_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace geopipe {
namespace {

constexpr std::string_view kPacing = "bbr";
constexpr std::string_view kUnpaced = "reno";
constexpr uint32_t kLoopbackNet = 127;

// An IPv4 TCP connection to an address of 127/8.
bool IsLoopbackConnection(int fd) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) {
    return false;
  }
  sockaddr_in peer{};
  size = sizeof peer;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET &&
         ntohl(peer.sin_addr.s_addr) >> 24 == kLoopbackNet;
}

bool Unpace(int fd) {
  std::array<char, 32> name{};
  socklen_t size = name.size() - 1;
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0 &&
         std::string_view(name.data()).starts_with(kPacing) &&
         setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size()) == 0;
}

}  // namespace

int UnpaceLoopbackSockets() {
  int changed = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && IsLoopbackConnection(fd)) {
      changed += Unpace(fd) ? 1 : 0;
    }
  }
  return changed;
}

}  // namespace geopipe
