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

// Time that a test advances by hand; SleepUntilNs advances it.
class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  int64_t UnixNowNs() const override { return unix_offset_ns_ + now_ns_; }
  void SleepUntilNs(int64_t monotonic_ns) override { now_ns_ = monotonic_ns > now_ns_ ? monotonic_ns : now_ns_; }
  void AdvanceNs(int64_t by_ns) { now_ns_ += by_ns; }

 private:
  int64_t now_ns_ = 0;
  int64_t unix_offset_ns_ = 1'700'000'000'000'000'000;
};

}  // namespace geopipe
