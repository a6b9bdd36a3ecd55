#include <cmath>
#include <cstring>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

// Returns -log softmax(row)[target]; the row becomes its softmax.
double CrossEntropyRow(float* row, int64_t classes, int32_t target) {
  const int64_t whole = classes / kLanes * kLanes;
  const int64_t rest = classes - whole;
  constexpr float kNothing = -3.0e38F;
  F32x8 maxima = rest == 0 ? Splat(kNothing) : LoadPartial(row + whole, rest, kNothing);
  for (int64_t j = 0; j < whole; j += kLanes) {
    maxima = Max(maxima, Load(row + j));
  }
  const float shift = Max(maxima);
  const double target_logit = row[target];
  F32x8 sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const F32x8 e = Exp(Load(row + j) - shift);
    Store(row + j, e);
    sums += e;
  }
  if (rest != 0) {
    const F32x8 e = Exp(LoadPartial(row + whole, rest, kNothing) - shift);  // 0 in the lanes that don't exist
    StorePartial(row + whole, e, rest);
    sums += e;
  }
  const float total = Sum(sums);
  const float factor = 1.0F / total;
  for (int64_t j = 0; j < classes; ++j) {
    row[j] *= factor;
  }
  return std::log(static_cast<double>(total)) + shift - target_logit;
}

}  // namespace

void CrossEntropy(int threads, const Rows<float>& logits, const int32_t* targets, double* row_losses) {
  ParallelFor(threads, logits.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      row_losses[i] = CrossEntropyRow(logits.Row(i), logits.columns, targets[i]);
    }
  });
}

void CrossEntropyGrad(int threads, const Rows<float>& softmax, const int32_t* targets, float grad_scale) {
  ParallelFor(threads, softmax.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = softmax.Row(i);
      row[targets[i]] -= 1.0F;
      for (int64_t j = 0; j < softmax.columns; ++j) {
        row[j] *= grad_scale;
      }
    }
  });
}

template <class T>
void EmbeddingKernels<T>::Embedding(int threads, const int32_t* tokens, const Rows<const T>& table,
                                    const Rows<T>& out) {
  ParallelFor(threads, out.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out.Row(i), table.Row(tokens[i]), static_cast<size_t>(out.columns) * sizeof(T));
    }
  });
}

template <class T>
void EmbeddingKernels<T>::EmbeddingGrad(int threads, const int32_t* tokens, const Rows<const T>& grad_out,
                                        const Rows<float>& grad_table) {
  // Threads divide the columns, so that every element is a sum in order of the tokens.
  ParallelFor(threads, grad_out.columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < grad_out.rows; ++i) {
      const T* in = grad_out.Row(i);
      float* out = grad_table.Row(tokens[i]);
      ForLanes(begin, end, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(out + j, count, LoadUpTo(out + j, count) + LoadUpTo(in + j, count));
      });
    }
  });
}

template struct EmbeddingKernels<float>;
template struct EmbeddingKernels<BFloat16>;

}  // namespace geopipe::cpu
