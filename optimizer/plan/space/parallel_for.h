// How work is shared out, decided by the caller: this library knows no threads.
#pragma once

#include <cstdint>
#include <functional>

namespace geopipe {

// Calls work(0) to work(count - 1), possibly several at once on several threads; returns when all are done.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;

// The same with what may be empty: one after the other.
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
