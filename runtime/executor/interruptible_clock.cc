#include "runtime/executor/interruptible_clock.h"

#include <chrono>

namespace geopipe {

void InterruptibleClock::SleepUntilNs(int64_t monotonic_ns) {
  // libstdc++'s steady_clock is CLOCK_MONOTONIC, and the wait does not convert it to wall-clock time.
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(monotonic_ns)};
  std::unique_lock lock(mutex_);
  interrupted_condition_.wait_until(lock, until, [this] { return interrupted_; });
}

void InterruptibleClock::Interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  interrupted_condition_.notify_all();
}

void InterruptibleClock::Resume() {
  const std::lock_guard lock(mutex_);
  interrupted_ = false;
}

}  // namespace geopipe
