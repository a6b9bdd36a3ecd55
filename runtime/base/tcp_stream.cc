#include "runtime/base/tcp_stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/poll.h"

namespace geopipe {
namespace {

constexpr int kBacklog = 64;

absl::Status Broken(std::string_view what, int error_number) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(error_number)));
}

std::optional<sockaddr_in> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (colon == std::string::npos || inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    return std::nullopt;
  }
  const absl::StatusOr<int64_t> port = ParseInteger(text.substr(colon + 1));
  if (!port.ok() || *port < 1 || *port > 65'535) {
    return std::nullopt;
  }
  address.sin_port = htons(static_cast<uint16_t>(*port));
  return address;
}

// Sends small messages at once, also while earlier ones are not yet acknowledged.
void SendAtOnce(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool MustWait(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

}  // namespace

absl::StatusOr<TcpStream> TcpStream::Connect(const std::string& address, int64_t deadline_ns, const StopEvent& stop,
                                             int receive_buffer_bytes) {
  const std::optional<sockaddr_in> target = ParseAddress(address);
  if (!target.has_value()) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not an address like 10.20.3.4:47000", address));
  }
  TcpStream stream(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), stop);
  if (!stream.valid()) {
    return Broken("no socket can be opened", errno);
  }
  SendAtOnce(stream.fd_.get());
  if (receive_buffer_bytes > 0) {  // before connecting: the window is agreed upon there
    setsockopt(stream.fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  if (connect(stream.fd_.get(), reinterpret_cast<const sockaddr*>(&*target), sizeof *target) != 0 &&
      errno != EINPROGRESS) {
    return Broken("cannot be connected to", errno);
  }
  GP_RETURN_IF_ERROR(stream.WaitFor(POLLOUT, deadline_ns));
  int error_number = 0;
  socklen_t size = sizeof error_number;
  if (getsockopt(stream.fd_.get(), SOL_SOCKET, SO_ERROR, &error_number, &size) != 0 || error_number != 0) {
    return Broken("cannot be connected to", error_number);
  }
  return stream;
}

absl::Status TcpStream::WaitFor(short events, int64_t deadline_ns) const {
  std::array<pollfd, 2> waited{
      {{.fd = fd_.get(), .events = events, .revents = 0}, {.fd = stop_->fd(), .events = POLLIN, .revents = 0}}};
  const int ready = PollFor(waited, std::max<int64_t>(0, deadline_ns - Clock::Real().NowNs()));
  if (waited[1].revents != 0) {
    return absl::CancelledError("stopped");
  }
  return ready > 0 ? absl::OkStatus() : absl::DeadlineExceededError("nothing moved in time");
}

absl::Status TcpStream::Send(std::span<const std::byte> bytes, int64_t deadline_ns) {
  while (!bytes.empty()) {
    GP_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline_ns));
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR && !MustWait(errno)) {
      return Broken("the connection broke", errno);
    }
    bytes = bytes.subspan(sent < 0 ? 0 : static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> TcpStream::ReceiveSome(std::span<std::byte> room, int64_t deadline_ns) {
  while (true) {
    GP_RETURN_IF_ERROR(WaitFor(POLLIN, deadline_ns));
    const ssize_t got = recv(fd_.get(), room.data(), room.size(), 0);
    if (got > 0) {
      return static_cast<size_t>(got);
    }
    if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    }
    if (errno != EINTR && !MustWait(errno)) {
      return Broken("the connection broke", errno);
    }
  }
}

absl::Status TcpStream::Receive(std::span<std::byte> bytes, int64_t deadline_ns) {
  while (!bytes.empty()) {
    GP_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(bytes, deadline_ns));
    bytes = bytes.subspan(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<TcpListener> TcpListener::Listen(const std::string& ip, const PortRange& ports) {
  int error_number = EADDRINUSE;
  for (uint32_t port = ports.first; port <= ports.last; ++port) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (!fd.valid() || inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1) {
      return Broken(fmt::format("cannot listen on {}", ip), fd.valid() ? EINVAL : errno);
    }
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        listen(fd.get(), kBacklog) == 0 && getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      return TcpListener(std::move(fd), fmt::format("{}:{}", ip, ntohs(address.sin_port)));
    }
    error_number = errno;
  }
  return Broken(fmt::format("cannot listen on {} port {} to {}", ip, ports.first, ports.last), error_number);
}

absl::StatusOr<TcpStream> TcpListener::Accept(const StopEvent& stop) {
  std::array<pollfd, 2> waited{
      {{.fd = fd_.get(), .events = POLLIN, .revents = 0}, {.fd = stop.fd(), .events = POLLIN, .revents = 0}}};
  PollFor(waited, -1);
  if (waited[1].revents != 0) {
    return absl::CancelledError("stopped");
  }
  TcpStream stream(UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)), stop);
  if (!stream.valid()) {
    return Broken("a connection could not be accepted", errno);
  }
  SendAtOnce(stream.fd_.get());
  return stream;
}

}  // namespace geopipe
