// Tells any number of threads to stop, whether they wait for sockets or sleep. Once, for good.
#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"

namespace geopipe {

// Thread-safe.
class StopEvent {
 public:
  StopEvent();
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  // An event that is never set. Lives for ever.
  static const StopEvent& Never();

  void Set();
  bool is_set() const;
  // Readable from Set on, to be polled beside others.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// A clock whose sleeps end when the event is set. Both outlive it. Thread-safe.
class StoppableClock final : public Clock {
 public:
  // Time is that of `clock`, which counts the nanoseconds of CLOCK_MONOTONIC.
  StoppableClock(Clock& clock, const StopEvent& stop) : clock_(clock), stop_(stop) {}

  int64_t NowNs() const override { return clock_.NowNs(); }
  int64_t UnixNowNs() const override { return clock_.UnixNowNs(); }
  void SleepUntilNs(int64_t monotonic_ns) override;

 private:
  Clock& clock_;
  const StopEvent& stop_;
};

}  // namespace geopipe
