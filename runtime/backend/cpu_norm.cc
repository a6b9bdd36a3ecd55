#include <cmath>
#include <cstring>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

// Sum over the row of a[j] * b[j], lane by lane.
template <class T>
float Dot(const T* a, const T* b, int64_t columns) {
  F32 sum{};
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    sum += Load(a + j) * Load(b + j);
  }
  if (j < columns) {
    sum += LoadPartial(a + j, columns - j, 0) * LoadPartial(b + j, columns - j, 0);
  }
  return Sum(sum);
}

template <class T>
float WeightedDot(const T* a, const T* b, const float* weight, int64_t columns) {
  F32 sum{};
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    sum += Load(a + j) * Load(b + j) * Load(weight + j);
  }
  if (j < columns) {
    const int64_t rest = columns - j;
    sum += LoadPartial(a + j, rest, 0) * LoadPartial(b + j, rest, 0) * LoadPartial(weight + j, rest, 0);
  }
  return Sum(sum);
}

}  // namespace

template <class T, class Width>
void NormKernels<T, Width>::RmsNorm(int threads, const Rows<const T>& x, int64_t width, const float* weight, float eps,
                                    const Rows<T>& y, float* inverse_rms) {
  const int64_t groups = x.columns / width;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * groups; i < end * groups; ++i) {
      const T* in = x.Row(i / groups) + i % groups * width;
      T* out = y.Row(i / groups) + i % groups * width;
      const float scale = 1.0F / std::sqrt(Dot(in, in, width) / static_cast<float>(width) + eps);
      inverse_rms[i] = scale;
      ForLanes(0, width, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(out + j, count, LoadUpTo(in + j, count) * scale * LoadUpTo(weight + j, count));
      });
    }
  });
}

template <class T, class Width>
void NormKernels<T, Width>::RmsNormGrad(int threads, const Rows<const T>& x, int64_t width, const float* weight,
                                        const float* inverse_rms, const Rows<const T>& grad_y,
                                        const Rows<const T>& residual, const Rows<T>& grad_x, float* block_sums) {
  // With r = inverse_rms: d/dx of x r w is r (w dy) - x r^3 / width * sum(w dy x), and d/dw is the sum of dy x r.
  const int64_t groups = x.columns / width;
  const int64_t blocks = (x.rows + kNormBlock - 1) / kNormBlock;
  ParallelFor(threads, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* const sums = block_sums + block * width;
      std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      const int64_t last = (block + 1) * kNormBlock < x.rows ? (block + 1) * kNormBlock : x.rows;
      for (int64_t i = block * kNormBlock * groups; i < last * groups; ++i) {
        const int64_t row = i / groups;
        const int64_t at = i % groups * width;
        const T* in = x.Row(row) + at;
        const T* dy = grad_y.Row(row) + at;
        const T* add = residual.data == nullptr ? nullptr : residual.Row(row) + at;
        T* out = grad_x.Row(row) + at;
        const float r = inverse_rms[i];
        const float projection = r * r * r * WeightedDot(in, dy, weight, width) / static_cast<float>(width);
        ForLanes(0, width, [&](int64_t j, int64_t count) GP_CPU_BODY {
          const F32 value = LoadUpTo(in + j, count);
          const F32 gradient = LoadUpTo(dy + j, count);
          const F32 through = r * LoadUpTo(weight + j, count) * gradient - projection * value;
          StoreUpTo(sums + j, count, LoadUpTo(sums + j, count) + gradient * value * r);
          StoreUpTo(out + j, count, add == nullptr ? through : LoadUpTo(add + j, count) + through);
        });
      }
    }
  });
}

template struct NormKernels<float, CompiledWidth>;
template struct NormKernels<BFloat16, CompiledWidth>;

}  // namespace geopipe::cpu
