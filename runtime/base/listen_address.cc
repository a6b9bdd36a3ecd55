#include "runtime/base/listen_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress ToSocketAddress(const ListenAddress& address) {
  SocketAddress result;
  if (address.host.find(':') != std::string::npos) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET6, address.host.c_str(), &in6->sin6_addr);
    result.size = sizeof(sockaddr_in6);
  } else {
    auto* in4 = reinterpret_cast<sockaddr_in*>(&result.storage);
    in4->sin_family = AF_INET;
    in4->sin_port = htons(static_cast<uint16_t>(address.port));
    inet_pton(AF_INET, address.host.c_str(), &in4->sin_addr);
    result.size = sizeof(sockaddr_in);
  }
  return result;
}

}  // namespace

std::string ToString(const ListenAddress& address) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, address.port)
                                                     : fmt::format("[{}]:{}", address.host, address.port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view key, std::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  const std::string_view port = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || address.port < 0 ||
      address.port > 65'535) {
    return absl::InvalidArgumentError(
        fmt::format("{} is \"{}\"; write it as host:port, like 127.0.0.1:7070", key, text));
  }
  address.host = std::string(text.substr(0, colon));
  if (address.host.empty() || address.host.find('/') != std::string::npos ||
      (address.host.find(':') != std::string::npos && address.host.front() != '[')) {
    return absl::InvalidArgumentError(fmt::format(
        "{} is \"{}\"; write it as host:port, like 127.0.0.1:7070, and IPv6 in brackets, like [::1]:7070", key, text));
  }
  if (address.host.size() >= 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host == "localhost") {
    address.host = "127.0.0.1";
  }
  in_addr v4{};
  in6_addr v6{};
  const bool loopback = (inet_pton(AF_INET, address.host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127) ||
                        (inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
  if (!loopback) {
    return absl::PermissionDeniedError(fmt::format(
        "{}: refuses to listen on {}: without certificates only loopback is allowed; use 127.0.0.1 or [::1]", key,
        text));
  }
  return address;
}

absl::Status CheckBindable(const ListenAddress& address) {
  const SocketAddress to = ToSocketAddress(address);
  const UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.get() >= 0) {
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (fd.get() < 0 || bind(fd.get(), to.get(), to.size) != 0 || listen(fd.get(), 1) != 0) {
    const int error = errno;
    return absl::UnavailableError(
        error == EADDRINUSE
            ? fmt::format("cannot listen on {}: the port is in use by another process; stop it or choose another port",
                          ToString(address))
            : fmt::format("cannot listen on {}: {}; choose another address", ToString(address), std::strerror(error)));
  }
  return absl::OkStatus();
}

void TouchListener(const ListenAddress& address) {
  const SocketAddress to = ToSocketAddress(address);
  const UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int ignored = connect(fd.get(), to.get(), to.size);  // on loopback it is there at once, or nobody listens
  (void)ignored;
}

}  // namespace geopipe
