#include "runtime/base/stop_event.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "optimizer/base/check.h"
#include "runtime/base/poll.h"

namespace geopipe {

StopEvent::StopEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  GP_CHECK(fd_.valid(), "eventfd failed, errno {}", errno);
}

const StopEvent& StopEvent::Never() {
  static const auto* const never = new StopEvent;
  return *never;
}

void StopEvent::Set() {
  const uint64_t one = 1;
  // The event is never read, so it stays readable. A full counter (EAGAIN) is readable as well.
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
}

bool StopEvent::is_set() const {
  pollfd waited{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return PollFor({&waited, 1}, 0) > 0;
}

void StoppableClock::SleepUntilNs(int64_t monotonic_ns) {
  pollfd waited{.fd = stop_.fd(), .events = POLLIN, .revents = 0};
  PollFor({&waited, 1}, std::max<int64_t>(0, monotonic_ns - clock_.NowNs()));
}

}  // namespace geopipe
