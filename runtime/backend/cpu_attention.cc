#include <cstring>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

template <class T>
void StoreZeros(T* row, int64_t begin, int64_t end) {
  std::memset(row + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
}

template <class T>
void SoftmaxRow(float* row, T* probabilities, int64_t visible, int64_t columns, float scale) {
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
  ForLanes(0, visible, [&](int64_t j, int64_t count) GP_CPU_BODY {
    StoreUpTo(probabilities + j, count, LoadUpTo(row + j, count) * inverse);
  });
  StoreZeros(probabilities, visible, columns);
}

template <class T>
void SoftmaxGradRow(const T* p, const float* grad, T* grad_scores, int64_t visible, int64_t columns, float scale) {
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
  ForLanes(0, visible, [&](int64_t j, int64_t count) GP_CPU_BODY {
    StoreUpTo(grad_scores + j, count, scale * LoadUpTo(p + j, count) * (LoadUpTo(grad + j, count) - mean));
  });
  StoreZeros(grad_scores, visible, columns);
}

}  // namespace

template <class T>
void AttentionKernels<T>::Rope(int threads, const Rows<T>& x, const float* cosine, const float* sine, int64_t sequence,
                               int64_t head_dim, float sign) {
  const int64_t half = head_dim / 2;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* c = cosine + i % sequence * half;
      const float* s = sine + i % sequence * half;
      for (T* first = x.Row(i); first < x.Row(i) + x.columns; first += head_dim) {
        T* second = first + half;
        ForLanes(0, half, [&](int64_t j, int64_t count) GP_CPU_BODY {
          const F32x8 a = LoadUpTo(first + j, count);
          const F32x8 b = LoadUpTo(second + j, count);
          const F32x8 level = LoadUpTo(c + j, count);
          const F32x8 turned = sign * LoadUpTo(s + j, count);
          StoreUpTo(first + j, count, a * level - b * turned);
          StoreUpTo(second + j, count, b * level + a * turned);
        });
      }
    }
  });
}

template <class T>
void AttentionKernels<T>::CausalSoftmax(const Rows<float>& scores, const Rows<T>& probabilities, int64_t first_row,
                                        float scale) {
  for (int64_t i = 0; i < scores.rows; ++i) {
    SoftmaxRow(scores.Row(i), probabilities.Row(i), first_row + i + 1, scores.columns, scale);
  }
}

template <class T>
void AttentionKernels<T>::CausalSoftmaxGrad(const Rows<const T>& probabilities, const Rows<const float>& grad,
                                            const Rows<T>& grad_scores, int64_t first_row, float scale) {
  for (int64_t i = 0; i < grad.rows; ++i) {
    SoftmaxGradRow(probabilities.Row(i), grad.Row(i), grad_scores.Row(i), first_row + i + 1, grad.columns, scale);
  }
}

template struct AttentionKernels<float>;
template struct AttentionKernels<BFloat16>;

}  // namespace geopipe::cpu
