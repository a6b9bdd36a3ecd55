// The page between bad_environment.h and the processes whose environment is bad.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace geopipe {

enum class Lack : uint8_t { kDescriptors, kFork, kEio, kEstale };

// All zeros: nothing is wrong. Written here, and read by the processes at each call.
struct BadEnvironmentPage {
  static constexpr size_t kLacks = 4;
  static constexpr size_t kMaxDisks = 4;
  // The environment variable that has the page's path.
  static constexpr const char* kVariable = "BAD_ENVIRONMENT_PAGE";
  std::array<std::atomic<int64_t>, kLacks> until_ns;  // CLOCK_MONOTONIC; so a lack ends even if this process is held up
  std::array<std::atomic<int64_t>, kLacks> failed;    // calls so far
  std::array<std::atomic<uint64_t>, kMaxDisks> disks;  // st_dev of what kEio and kEstale are about; 0: none
};

}  // namespace geopipe
