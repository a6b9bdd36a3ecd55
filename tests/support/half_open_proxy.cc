#include "tests/support/half_open_proxy.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/poll.h"

namespace geopipe {
namespace {

constexpr size_t kMaxWaiting = size_t{1} << 20;  // of one direction
constexpr int kBacklog = 64;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd Connect(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return UniqueFd();  // nobody listens: the caller's connection ends
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HalfOpenProxy>> HalfOpenProxy::Start(uint16_t target_port) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener.get(), kBacklog) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "cannot listen on the loopback address");
  }
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoStatus(errno, "cannot make an eventfd");
  }
  return std::unique_ptr<HalfOpenProxy>(new HalfOpenProxy(std::move(listener), std::move(wake), target_port,
                                                          fmt::format("127.0.0.1:{}", ntohs(address.sin_port))));
}

HalfOpenProxy::HalfOpenProxy(UniqueFd listener, UniqueFd wake, uint16_t target_port, std::string endpoint)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      target_port_(target_port),
      endpoint_(std::move(endpoint)),
      thread_([this] { Run(); }) {}

HalfOpenProxy::~HalfOpenProxy() {
  stop_ = true;
  const uint64_t one = 1;
  const ssize_t ignored = write(wake_.get(), &one, sizeof(one));
  (void)ignored;
  thread_.join();
}

void HalfOpenProxy::Run() {
  while (!stop_) {
    std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                            {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      for (int end = 0; end < 2; ++end) {
        const Pipe& pipe = connection.ends[end];
        const bool room = connection.ends[1 - end].waiting.size() < kMaxWaiting;
        const int events = (pipe.ended || !room ? 0 : POLLIN) | (pipe.waiting.empty() ? 0 : POLLOUT);
        fds.push_back({.fd = events == 0 ? -1 : pipe.fd.get(), .events = static_cast<short>(events), .revents = 0});
      }
    }
    PollFor(fds, -1);
    size_t at = 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); at += 2) {
      const std::array<short, 2> revents{fds[at].revents, fds[at + 1].revents};
      const auto next = std::next(connection);
      if (!Carry(*connection, revents.data())) {
        connections_.erase(connection);
      }
      connection = next;
    }
    if (fds[1].revents != 0) {
      Accept();
    }
  }
}

void HalfOpenProxy::Accept() {
  UniqueFd near(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!near.valid()) {
    return;
  }
  UniqueFd far = Connect(target_port_);
  if (!far.valid()) {
    return;
  }
  const int on = 1;
  setsockopt(near.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  Connection& connection = connections_.emplace_back();
  connection.ends[0].fd = std::move(near);
  connection.ends[1].fd = std::move(far);
}

bool HalfOpenProxy::Carry(Connection& connection, const short* revents) {
  connection.dead = connection.dead || swallow_;
  std::array<char, size_t{64} << 10> bytes{};
  for (int end = 0; end < 2; ++end) {
    Pipe& pipe = connection.ends[end];
    Pipe& other = connection.ends[1 - end];
    if ((revents[end] & (POLLIN | POLLHUP | POLLERR)) != 0) {
      const ssize_t got = recv(pipe.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        pipe.ended = true;  // what it still hears of it is swallowed, too
      } else if (got > 0 && !connection.dead) {
        other.waiting.append(bytes.data(), static_cast<size_t>(got));
      }
    }
    if (connection.dead) {
      pipe.waiting.clear();
    }
    if (!pipe.waiting.empty()) {
      const ssize_t put = send(pipe.fd.get(), pipe.waiting.data(), pipe.waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN && errno != EINTR) {
        pipe.ended = true;
        pipe.waiting.clear();
      } else if (put > 0) {
        pipe.waiting.erase(0, static_cast<size_t>(put));
      }
    }
  }
  // The end of a live connection reaches the other end as an end; of a dead one the other end learns nothing.
  const bool over = connection.ends[0].ended && connection.ends[1].ended;
  const bool told = (connection.ends[0].ended && connection.ends[1].waiting.empty()) ||
                    (connection.ends[1].ended && connection.ends[0].waiting.empty());
  return !over && (connection.dead || !told);
}

}  // namespace geopipe
