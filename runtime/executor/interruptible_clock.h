// A clock whose sleepers can be woken, so that a worker that is told to stop, or to end its epoch, does so at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/base/clock.h"

namespace geopipe {

// Thread-safe.
class InterruptibleClock final : public Clock {
 public:
  // Time is that of `clock`, which counts the nanoseconds of CLOCK_MONOTONIC and outlives this one.
  explicit InterruptibleClock(Clock& clock) : clock_(clock) {}

  int64_t NowNs() const override { return clock_.NowNs(); }
  int64_t UnixNowNs() const override { return clock_.UnixNowNs(); }
  void SleepUntilNs(int64_t monotonic_ns) override;

  // Wakes all sleepers; later sleeps return at once, until Resume.
  void Interrupt();
  // Lets sleeps last again.
  void Resume();

 private:
  Clock& clock_;
  std::mutex mutex_;
  std::condition_variable interrupted_condition_;
  bool interrupted_ = false;
};

}  // namespace geopipe
