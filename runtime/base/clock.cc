#include "runtime/base/clock.h"

#include <cerrno>
#include <ctime>

namespace geopipe {
namespace {

int64_t Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class RealClock final : public Clock {
 public:
  int64_t NowNs() const override { return Read(CLOCK_MONOTONIC); }
  int64_t UnixNowNs() const override { return Read(CLOCK_REALTIME); }
  void SleepUntilNs(int64_t monotonic_ns) override {
    const timespec until{.tv_sec = monotonic_ns / 1'000'000'000, .tv_nsec = monotonic_ns % 1'000'000'000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
};

}  // namespace

Clock& Clock::Real() {
  static RealClock clock;
  return clock;
}

}  // namespace geopipe
