#include <cmath>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

// Sum over the row of a[j] * b[j], lane by lane.
template <class T>
float Dot(const T* a, const T* b, int64_t columns) {
  F32x8 sum{};
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
  F32x8 sum{};
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

template <class T>
void NormKernels<T>::RmsNorm(int threads, const Rows<const T>& x, const float* weight, float eps, const Rows<T>& y,
                             float* inverse_rms) {
  const int64_t columns = x.columns;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* in = x.Row(i);
      T* out = y.Row(i);
      const float scale = 1.0F / std::sqrt(Dot(in, in, columns) / static_cast<float>(columns) + eps);
      inverse_rms[i] = scale;
      ForLanes(0, columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(out + j, count, LoadUpTo(in + j, count) * scale * LoadUpTo(weight + j, count));
      });
    }
  });
}

template <class T>
void NormKernels<T>::RmsNormInputGrad(int threads, const Rows<const T>& x, const float* weight,
                                      const float* inverse_rms, const Rows<const T>& grad_y,
                                      const Rows<const T>& residual, const Rows<T>& grad_x) {
  // With r = inverse_rms: d/dx of x r w is r (w dy) - x r^3 / columns * sum(w dy x).
  const int64_t columns = x.columns;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* in = x.Row(i);
      const T* dy = grad_y.Row(i);
      const T* add = residual.data == nullptr ? nullptr : residual.Row(i);
      T* out = grad_x.Row(i);
      const float r = inverse_rms[i];
      const float projection = r * r * r * WeightedDot(in, dy, weight, columns) / static_cast<float>(columns);
      ForLanes(0, columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
        const F32x8 grad =
            r * LoadUpTo(weight + j, count) * LoadUpTo(dy + j, count) - projection * LoadUpTo(in + j, count);
        StoreUpTo(out + j, count, add == nullptr ? grad : LoadUpTo(add + j, count) + grad);
      });
    }
  });
}

template <class T>
void NormKernels<T>::RmsNormWeightGrad(int threads, const Rows<const T>& x, const float* inverse_rms,
                                       const Rows<const T>& grad_y, float* grad_weight) {
  ParallelFor(threads, x.columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < x.rows; ++i) {
      const T* in = x.Row(i);
      const T* dy = grad_y.Row(i);
      const float r = inverse_rms[i];
      ForLanes(begin, end, [&](int64_t j, int64_t count) GP_CPU_BODY {
        const F32x8 grad = LoadUpTo(dy + j, count) * LoadUpTo(in + j, count) * r;
        StoreUpTo(grad_weight + j, count, LoadUpTo(grad_weight + j, count) + grad);
      });
    }
  });
}

template struct NormKernels<float>;
template struct NormKernels<BFloat16>;

}  // namespace geopipe::cpu
