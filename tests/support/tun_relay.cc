#include "tests/support/tun_relay.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/thread_name.h"

namespace geopipe {
namespace {

constexpr size_t kMaxPacketBytes = 65536;
constexpr size_t kSmallPacketBytes = 4096;  // copied to a buffer of their size
constexpr int kMaxPacketsAtOnce = 32;       // of one device, before the due ones are delivered

}  // namespace

absl::StatusOr<std::unique_ptr<TunRelay>> TunRelay::Start(const TunSites& sites, const RelayLinkOptions& options) {
  std::unique_ptr<TunRelay> relay(new TunRelay(sites, options));
  GP_RETURN_IF_ERROR(relay->Open());
  relay->thread_ = std::thread([raw = relay.get()] { raw->Run(); });
  return relay;
}

TunRelay::~TunRelay() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

absl::Status TunRelay::Open() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const int fd : {timer_.get(), wake_.get(), sites_.site(0).tun.get(), sites_.site(1).tun.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::UnavailableError(fmt::format("the relay cannot open its descriptors: {}", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void TunRelay::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void TunRelay::Cut(int64_t duration_ns) {
  std::lock_guard lock(mutex_);
  for (RelayLink& link : links_) {
    link.Cut(Clock::Real().NowNs() + duration_ns);
  }
}

void TunRelay::SetOptions(const RelayLinkOptions& options) {
  std::lock_guard lock(mutex_);
  for (RelayLink& link : links_) {
    link.SetOptions(options);
  }
}

RelayLinkCounters TunRelay::counters(size_t from) const {
  std::lock_guard lock(mutex_);
  return links_[from].counters();
}

int64_t TunRelay::cpu_ns() const { return ThreadCpuNs(const_cast<std::thread&>(thread_).native_handle()); }

void TunRelay::Run() {
  const std::array<int, 2> tuns = {sites_.site(0).tun.get(), sites_.site(1).tun.get()};
  while (!stop_.load()) {
    Deliver();
    std::array<epoll_event, 4> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == tuns[0] || fd == tuns[1]) {
        ReadPackets(fd == tuns[0] ? 0 : 1);
      } else {
        uint64_t value = 0;
        [[maybe_unused]] const ssize_t got = read(fd, &value, sizeof value);
      }
    }
  }
}

void TunRelay::ReadPackets(size_t from) {
  for (int i = 0; i < kMaxPacketsAtOnce; ++i) {
    scratch_.resize(kMaxPacketBytes);
    const ssize_t got = read(sites_.site(from).tun.get(), scratch_.data(), scratch_.size());
    if (got <= 0) {
      return;
    }
    const auto bytes = static_cast<size_t>(got);
    std::vector<std::byte> packet;
    if (bytes <= kSmallPacketBytes) {
      packet.assign(scratch_.begin(), scratch_.begin() + got);
    } else {
      scratch_.resize(bytes);
      packet.swap(scratch_);
    }
    const std::lock_guard lock(mutex_);
    links_[from].Push(Clock::Real().NowNs(), std::move(packet));
  }
}

void TunRelay::Deliver() {
  int64_t next_ns = RelayLink::kNeverNs;
  for (size_t from = 0; from < 2; ++from) {
    while (true) {
      std::optional<std::vector<std::byte>> packet;
      {
        const std::lock_guard lock(mutex_);
        packet = links_[from].PopDue(Clock::Real().NowNs());
        if (!packet.has_value()) {
          next_ns = std::min(next_ns, links_[from].NextDueNs());
          break;
        }
      }
      // A packet that the device does not take is lost, as on a real link.
      [[maybe_unused]] const ssize_t written = write(sites_.site(1 - from).tun.get(), packet->data(), packet->size());
    }
  }
  itimerspec timer{};
  if (next_ns != RelayLink::kNeverNs) {
    timer.it_value = {.tv_sec = next_ns / 1'000'000'000, .tv_nsec = next_ns % 1'000'000'000};
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &timer, nullptr);
}

}  // namespace geopipe
