#include <cmath>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

// Sum over the row of a[j] * b[j], in lanes.
float Dot(const float* a, const float* b, int64_t columns) {
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

float WeightedDot(const float* a, const float* b, const float* weight, int64_t columns) {
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

void RmsNorm(int threads, const ConstRows& x, const float* weight, float eps, const Rows& y, float* inverse_rms) {
  const int64_t columns = x.columns;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* in = x.Row(i);
      float* out = y.Row(i);
      const float scale = 1.0F / std::sqrt(Dot(in, in, columns) / static_cast<float>(columns) + eps);
      inverse_rms[i] = scale;
      for (int64_t j = 0; j < columns; ++j) {
        out[j] = in[j] * scale * weight[j];
      }
    }
  });
}

void RmsNormInputGrad(int threads, const ConstRows& x, const float* weight, const float* inverse_rms,
                      const ConstRows& grad_y, const ConstRows& residual, const Rows& grad_x) {
  // With r = inverse_rms: d/dx of x r w is r (w dy) - x r^3 / columns * sum(w dy x).
  const int64_t columns = x.columns;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* in = x.Row(i);
      const float* dy = grad_y.Row(i);
      float* out = grad_x.Row(i);
      const float r = inverse_rms[i];
      const float projection = r * r * r * WeightedDot(in, dy, weight, columns) / static_cast<float>(columns);
      if (residual.data == nullptr) {
        for (int64_t j = 0; j < columns; ++j) {
          out[j] = r * weight[j] * dy[j] - projection * in[j];
        }
      } else {
        const float* add = residual.Row(i);
        for (int64_t j = 0; j < columns; ++j) {
          out[j] = add[j] + (r * weight[j] * dy[j] - projection * in[j]);
        }
      }
    }
  });
}

void RmsNormWeightGrad(int threads, const ConstRows& x, const float* inverse_rms, const ConstRows& grad_y,
                       float* grad_weight) {
  ParallelFor(threads, x.columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < x.rows; ++i) {
      const float* in = x.Row(i);
      const float* dy = grad_y.Row(i);
      const float r = inverse_rms[i];
      for (int64_t j = begin; j < end; ++j) {
        grad_weight[j] += dy[j] * in[j] * r;
      }
    }
  });
}

}  // namespace geopipe::cpu
