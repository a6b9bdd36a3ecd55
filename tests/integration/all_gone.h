// Checks that none of a run's processes has outlived it.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "tests/integration/processes.h"

namespace geopipe {

inline void CheckAllGone(const std::vector<ProcessInfo>& processes) {
  for (const ProcessInfo& process : processes) {
    INFO(process.pid << " " << process.arguments.front());
    CHECK_FALSE(Exists(process));
  }
}

}  // namespace geopipe
