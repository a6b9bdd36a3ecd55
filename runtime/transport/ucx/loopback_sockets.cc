#include "runtime/transport/ucx/loopback_sockets.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr std::string_view kPacing = "bbr";
constexpr std::string_view kUnpaced = "reno";
constexpr uint32_t kLoopbackNet = 127;

bool IsLoopback(const sockaddr* address, socklen_t size) {
  sockaddr_in inet{};
  if (address == nullptr || size < sizeof inet || address->sa_family != AF_INET) {
    return false;
  }
  std::memcpy(&inet, address, sizeof inet);
  return ntohl(inet.sin_addr.s_addr) >> 24 == kLoopbackNet;
}

// What cannot be changed stays as it is.
[[maybe_unused]] void Unpace(int fd) {
  const int saved_errno = errno;
  std::array<char, 32> name{};
  socklen_t size = name.size() - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0 &&
      std::string_view(name.data()).starts_with(kPacing)) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
  }
  errno = saved_errno;
}

[[maybe_unused]] bool IsBoundToLoopback(int fd) {
  const int saved_errno = errno;
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  const bool named = getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  errno = saved_errno;
  return named && IsLoopback(reinterpret_cast<const sockaddr*>(&bound), size);
}

template <class Function>
Function* Libc(const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  GP_CHECK(function != nullptr, "libc has no {}", name);
  return function;
}

}  // namespace

bool KeepsLoopbackUnpaced() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  // As UCX's libraries find it.
  return dlsym(RTLD_DEFAULT, "connect") == reinterpret_cast<void*>(&::connect) &&
         dlsym(RTLD_DEFAULT, "listen") == reinterpret_cast<void*>(&::listen);
#endif
}

}  // namespace geopipe

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

__attribute__((visibility("default"))) int connect(int fd, const sockaddr* address, socklen_t size) {
  static auto* const libc_connect = geopipe::Libc<decltype(::connect)>("connect");
  if (geopipe::IsLoopback(address, size)) {
    geopipe::Unpace(fd);
  }
  return libc_connect(fd, address, size);
}

__attribute__((visibility("default"))) int listen(int fd, int backlog) noexcept {
  static auto* const libc_listen = geopipe::Libc<decltype(::listen)>("listen");
  if (geopipe::IsBoundToLoopback(fd)) {
    geopipe::Unpace(fd);  // what it accepts inherits it
  }
  return libc_listen(fd, backlog);
}

}  // extern "C"
#endif
