#include <cmath>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

F32x8 Sigmoid(F32x8 x) __attribute__((always_inline));
inline F32x8 Sigmoid(F32x8 x) { return 1.0F / (1.0F + Exp(-x)); }

// Lanes of [j, columns): all of them, or as many as are left.
GP_CPU_INLINE F32x8 LoadUpTo(const float* row, int64_t j, int64_t columns) {
  return j + kLanes <= columns ? Load(row + j) : LoadPartial(row + j, columns - j, 0);
}

GP_CPU_INLINE void StoreUpTo(float* row, int64_t j, int64_t columns, F32x8 value) {
  if (j + kLanes <= columns) {
    Store(row + j, value);
  } else {
    StorePartial(row + j, value, columns - j);
  }
}

double BlockSumOfSquares(const float* values, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t lane = 0; lane < kSums; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const double value = values[i];
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

void SwiGlu(int threads, const ConstRows& gate, const ConstRows& up, const Rows& out) {
  ParallelFor(threads, gate.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < gate.columns; j += kLanes) {
        const F32x8 g = LoadUpTo(gate.Row(i), j, gate.columns);
        const F32x8 u = LoadUpTo(up.Row(i), j, gate.columns);
        StoreUpTo(out.Row(i), j, gate.columns, g * Sigmoid(g) * u);
      }
    }
  });
}

void SwiGluGrad(int threads, const ConstRows& gate, const ConstRows& up, const ConstRows& grad_out,
                const Rows& grad_gate, const Rows& grad_up) {
  ParallelFor(threads, gate.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < gate.columns; j += kLanes) {
        const F32x8 g = LoadUpTo(gate.Row(i), j, gate.columns);
        const F32x8 u = LoadUpTo(up.Row(i), j, gate.columns);
        const F32x8 d = LoadUpTo(grad_out.Row(i), j, gate.columns);
        const F32x8 sigmoid = Sigmoid(g);
        const F32x8 silu = g * sigmoid;
        StoreUpTo(grad_gate.Row(i), j, gate.columns, d * u * (sigmoid + silu * (1.0F - sigmoid)));
        StoreUpTo(grad_up.Row(i), j, gate.columns, d * silu);
      }
    }
  });
}

void Axpy(int threads, int64_t count, float alpha, const float* x, float* y) {
  ParallelFor(threads, count, kSumBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      y[i] += alpha * x[i];
    }
  });
}

void SumOfSquares(int threads, int64_t count, const float* values, double* block_sums) {
  const int64_t blocks = (count + kSumBlock - 1) / kSumBlock;
  ParallelFor(threads, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kSumBlock;
      block_sums[block] = BlockSumOfSquares(values + first, count - first < kSumBlock ? count - first : kSumBlock);
    }
  });
}

void AdamW(int threads, int64_t count, const AdamWConstants& constants, float* parameter, const float* gradient,
           float* first_moment, float* second_moment) {
  const AdamWConstants c = constants;
  ParallelFor(threads, count, kSumBlock, [&](int64_t begin, int64_t end) {
    float* __restrict__ p = parameter;
    float* __restrict__ m = first_moment;
    float* __restrict__ v = second_moment;
    for (int64_t i = begin; i < end; ++i) {
      const float g = gradient[i] * c.grad_scale;
      m[i] = m[i] * c.beta1 + g * c.one_minus_beta1;
      v[i] = v[i] * c.beta2 + g * g * c.one_minus_beta2;
      const float denominator = __builtin_sqrtf(v[i]) / c.sqrt_bias_correction2 + c.eps;
      p[i] = p[i] * c.decay - c.step_size * (m[i] / denominator);
    }
  });
}

}  // namespace geopipe::cpu
