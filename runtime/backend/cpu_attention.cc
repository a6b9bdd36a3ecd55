#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

void SoftmaxRow(float* row, int64_t visible, int64_t columns, float scale) {
  const int64_t whole = visible / kLanes * kLanes;
  const int64_t rest = visible - whole;
  constexpr float kNothing = -3.0e38F;
  F32x8 maxima = rest == 0 ? Splat(kNothing) : LoadPartial(row + whole, rest, kNothing);
  for (int64_t j = 0; j < whole; j += kLanes) {
    maxima = Max(maxima, Load(row + j));
  }
  const float shift = Max(maxima);
  F32x8 sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const F32x8 e = Exp((Load(row + j) - shift) * scale);
    Store(row + j, e);
    sums += e;
  }
  float total = 0;
  if (rest == 0) {
    total = Sum(sums);
  } else {
    const F32x8 e = Exp((LoadPartial(row + whole, rest, shift) - shift) * scale);
    StorePartial(row + whole, e, rest);
    F32x8 seen{};
    for (int64_t j = 0; j < rest; ++j) {
      seen[j] = e[j];
    }
    total = Sum(sums + seen);
  }
  const float inverse = 1.0F / total;
  for (int64_t j = 0; j < visible; ++j) {
    row[j] *= inverse;
  }
  for (int64_t j = visible; j < columns; ++j) {
    row[j] = 0;
  }
}

void SoftmaxGradRow(const float* p, float* grad, int64_t visible, int64_t columns, float scale) {
  const int64_t whole = visible / kLanes * kLanes;
  const int64_t rest = visible - whole;
  F32x8 sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    sums += Load(p + j) * Load(grad + j);
  }
  if (rest != 0) {
    sums += LoadPartial(p + whole, rest, 0) * LoadPartial(grad + whole, rest, 0);
  }
  const float mean = Sum(sums);
  for (int64_t j = 0; j < visible; ++j) {
    grad[j] = scale * p[j] * (grad[j] - mean);
  }
  for (int64_t j = visible; j < columns; ++j) {
    grad[j] = 0;
  }
}

}  // namespace

void Rope(int threads, const Rows& x, const float* cosine, const float* sine, int64_t sequence, int64_t head_dim,
          float sign) {
  const int64_t half = head_dim / 2;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = i % sequence;
      const float* c = cosine + position * half;
      const float* s = sine + position * half;
      for (float* head = x.Row(i); head < x.Row(i) + x.columns; head += head_dim) {
        float* __restrict__ first = head;
        float* __restrict__ second = head + half;
        for (int64_t j = 0; j < half; ++j) {
          const float a = first[j];
          const float b = second[j];
          const float turned = sign * s[j];
          first[j] = a * c[j] - b * turned;
          second[j] = b * c[j] + a * turned;
        }
      }
    }
  });
}

void CausalSoftmax(const Rows& scores, int64_t first_row, float scale) {
  for (int64_t i = 0; i < scores.rows; ++i) {
    SoftmaxRow(scores.Row(i), first_row + i + 1, scores.columns, scale);
  }
}

void CausalSoftmaxGrad(const ConstRows& probabilities, const Rows& grad, int64_t first_row, float scale) {
  for (int64_t i = 0; i < grad.rows; ++i) {
    SoftmaxGradRow(probabilities.Row(i), grad.Row(i), first_row + i + 1, grad.columns, scale);
  }
}

}  // namespace geopipe::cpu
