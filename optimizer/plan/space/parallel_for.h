// How work is shared out, decided by the caller: this library knows no threads.
#pragma once

#include <cstdint>
#include <functional>

namespace geopipe {

// Calls work(0) to work(count - 1), possibly several at once on several threads; returns when all are done.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;

}  // namespace geopipe
