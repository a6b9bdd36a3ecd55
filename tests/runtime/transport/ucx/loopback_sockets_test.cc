#include "runtime/transport/ucx/loopback_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/unique_fd.h"

namespace geopipe {
namespace {

std::string CongestionControl(int fd) {
  std::array<char, 32> name{};
  socklen_t size = name.size() - 1;
  REQUIRE(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
  return name.data();
}

TEST_CASE("loopback connections are never paced, whatever the host's default is") {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  REQUIRE(KeepsLoopbackUnpaced());
  constexpr char kBbr[] = "bbr";
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Not every kernel has bbr, or lets everybody choose it.
  for (const int fd : {listener.get(), client.get()}) {
    [[maybe_unused]] const int set = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kBbr, sizeof kBbr - 1);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  REQUIRE(connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  const UniqueFd server(accept(listener.get(), nullptr, nullptr));
  CHECK(CongestionControl(client.get()) != "bbr");
  CHECK(CongestionControl(server.get()) != "bbr");
#endif
}

TEST_CASE("connections that leave the host keep their congestion control") {
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  constexpr char kBbr[] = "bbr";
  [[maybe_unused]] const int set = setsockopt(client.get(), IPPROTO_TCP, TCP_CONGESTION, kBbr, sizeof kBbr - 1);
  const std::string before = CongestionControl(client.get());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  REQUIRE(inet_pton(AF_INET, "192.0.2.1", &address.sin_addr) == 1);  // of RFC 5737: nobody's
  CHECK(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == -1);
  CHECK(CongestionControl(client.get()) == before);
}

}  // namespace
}  // namespace geopipe
