// Checks that none of a run's processes has outlived it. One that was killed takes its time to be gone.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/integration/processes.h"
#include "tests/support/durations.h"

namespace geopipe {

inline void CheckAllGone(const std::vector<ProcessInfo>& processes) {
  const int64_t deadline_ns = Clock::Real().NowNs() + 2 * kSecond;
  for (const ProcessInfo& process : processes) {
    while (Exists(process) && Clock::Real().NowNs() < deadline_ns) {
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + kSecond / 100);
    }
    INFO(process.pid << " " << process.arguments.front());
    CHECK_FALSE(Exists(process));
  }
}

}  // namespace geopipe
