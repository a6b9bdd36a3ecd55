// Work shared between a fixed number of threads.
#pragma once

#include <omp.h>

#include <cstdint>

namespace geopipe::cpu {

// Calls body(begin, end) on each thread with its part of [0, count). Parts are whole multiples of `grain`, but for the
// last. The body's results must not depend on where the parts begin.
template <typename Body>
void ParallelFor(int threads, int64_t count, int64_t grain, const Body& body) {
  if (threads <= 1 || count <= grain) {
    body(int64_t{0}, count);
    return;
  }
  const int64_t grains = (count + grain - 1) / grain;
#pragma omp parallel num_threads(threads)
  {
    const int64_t part = omp_get_thread_num();
    const int64_t parts = omp_get_num_threads();
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = part + 1 == parts ? count : grains * (part + 1) / parts * grain;
    if (begin < end) {
      body(begin, end);
    }
  }
}

}  // namespace geopipe::cpu
