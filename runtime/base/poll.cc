#include "runtime/base/poll.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"

namespace geopipe {

int PollFor(std::span<pollfd> fds, int64_t timeout_ns) {
  constexpr int64_t kNsPerS = 1'000'000'000;
  const int64_t until_ns = timeout_ns < 0 ? 0 : Clock::Real().NowNs() + timeout_ns;
  while (true) {
    const int64_t left_ns = timeout_ns < 0 ? 0 : std::max<int64_t>(0, until_ns - Clock::Real().NowNs());
    const timespec left{.tv_sec = left_ns / kNsPerS, .tv_nsec = left_ns % kNsPerS};
    const int ready = ppoll(fds.data(), fds.size(), timeout_ns < 0 ? nullptr : &left, nullptr);
    if (ready >= 0) {
      return ready;
    }
    GP_CHECK(errno == EINTR, "ppoll failed, errno {}", errno);
  }
}

}  // namespace geopipe
