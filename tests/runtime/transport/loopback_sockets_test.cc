#include "runtime/transport/loopback_sockets.h"

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

TEST_CASE("loopback connections are not paced, whatever the host's default is") {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(client.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  const UniqueFd server(accept(listener.get(), nullptr, nullptr));
  // Not every kernel has bbr, or lets everybody choose it.
  constexpr char kBbr[] = "bbr";
  const bool has_bbr = setsockopt(client.get(), IPPROTO_TCP, TCP_CONGESTION, kBbr, sizeof kBbr - 1) == 0 &&
                       setsockopt(server.get(), IPPROTO_TCP, TCP_CONGESTION, kBbr, sizeof kBbr - 1) == 0;
  const std::string before = CongestionControl(listener.get());
  const int changed = UnpaceLoopbackSockets();
  CHECK((!has_bbr || changed >= 2));
  CHECK(CongestionControl(client.get()) != "bbr");
  CHECK(CongestionControl(server.get()) != "bbr");
  CHECK(CongestionControl(listener.get()) == before);  // only connections
  CHECK(UnpaceLoopbackSockets() == 0);
}

}  // namespace
}  // namespace geopipe
