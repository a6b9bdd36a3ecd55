// Time that a test advances by hand; SleepUntilNs advances it.
#pragma once

#include "runtime/base/clock.h"

namespace geopipe {

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
