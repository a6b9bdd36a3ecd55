// The caller's way to run work in parallel: this library has no threads.
#pragma once

#include <cstdint>
#include <functional>

namespace geopipe {

// Calls work(0) to work(count - 1), possibly several at once on several threads; returns when all are done.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;

// Calls `parallel_for`; if it is empty, does the work in sequence.
inline void InParallel(const ParallelFor& parallel_for, int64_t count, const std::function<void(int64_t)>& work) {
  if (parallel_for && count > 1) {
    parallel_for(count, work);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    work(i);
  }
}

}  // namespace geopipe
