// Time comes in through one door, so that tests can swap it.
#pragma once

#include <cstdint>

namespace geopipe {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds (CLOCK_MONOTONIC: comparable between processes of one host, not between hosts).
  virtual int64_t NowNs() const = 0;
  // Wall-clock nanoseconds since 1970, for people; never for decisions.
  virtual int64_t UnixNowNs() const = 0;
  // Sleeps until the monotonic time; returns at once when it has passed.
  virtual void SleepUntilNs(int64_t monotonic_ns) = 0;

  // The machine's clock; lives for ever.
  static Clock& Real();
};

}  // namespace geopipe
