#include <cmath>
#include <cstring>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

constexpr float kNothing = -3.0e38F;

float RowMax(const float* row, int64_t classes) {
  const int64_t whole = classes / kLanes * kLanes;
  const int64_t rest = classes - whole;
  F32 maxima = rest == 0 ? Splat(kNothing) : LoadPartial(row + whole, rest, kNothing);
  for (int64_t j = 0; j < whole; j += kLanes) {
    maxima = Max(maxima, Load(row + j));
  }
  return Max(maxima);
}

// Turns the row into exp(row - shift) and returns its sum.
float ExpRow(float* row, int64_t classes, float shift) {
  const int64_t whole = classes / kLanes * kLanes;
  const int64_t rest = classes - whole;
  F32 sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const F32 e = Exp(Load(row + j) - shift);
    Store(row + j, e);
    sums += e;
  }
  if (rest != 0) {
    const F32 e = Exp(LoadPartial(row + whole, rest, kNothing) - shift);  // 0 in the lanes that don't exist
    StorePartial(row + whole, e, rest);
    sums += e;
  }
  return Sum(sums);
}

// Sets `gradient`, which may be the row of exponentials itself, to `scale` times the gradient of -log softmax[target]
// with respect to the logits. `target` is -1 where it is in another slice.
template <class T>
void GradOfExp(const float* exponentials, int64_t classes, float total, int64_t target, float scale, T* gradient) {
  const float factor = 1.0F / total;
  const float of_target = target < 0 ? 0.0F : (exponentials[target] * factor - 1.0F) * scale;
  ForLanes(0, classes, [&](int64_t j, int64_t count) GP_CPU_BODY {
    StoreUpTo(gradient + j, count, LoadUpTo(exponentials + j, count) * factor * scale);
  });
  if (target >= 0) {
    StorePartial(gradient + target, Splat(of_target), 1);
  }
}

double LossOfRow(float shift, float total, float target_logit) {
  return std::log(static_cast<double>(total)) + shift - target_logit;
}

// Place of a token of the vocabulary in the slice of `size` tokens that begins at `first`; -1 when it is elsewhere.
int64_t InSlice(int32_t token, int64_t first, int64_t size) {
  const int64_t at = token - first;
  return at >= 0 && at < size ? at : -1;
}

}  // namespace

template <class T, class Width>
void LossKernels<T, Width>::CrossEntropy(int threads, const Rows<float>& logits, const int32_t* targets,
                                         float grad_scale, const Rows<T>& gradient, double* row_losses) {
  const int64_t classes = logits.columns;
  ParallelFor(threads, logits.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = logits.Row(i);
      const float shift = RowMax(row, classes);
      const float target_logit = row[targets[i]];
      const float total = ExpRow(row, classes, shift);
      row_losses[i] = LossOfRow(shift, total, target_logit);
      if (gradient.data != nullptr) {
        GradOfExp(row, classes, total, targets[i], grad_scale, gradient.Row(i));
      }
    }
  });
}

template <class Width>
void SlicedLossKernels<Width>::CrossEntropyMax(int threads, const Rows<const float>& logits, float* max) {
  ParallelFor(threads, logits.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      max[i] = RowMax(logits.Row(i), logits.columns);
    }
  });
}

template <class Width>
void SlicedLossKernels<Width>::CrossEntropySums(int threads, const Rows<float>& logits, const float* max,
                                                const int32_t* targets, int64_t first_class, float* sums) {
  ParallelFor(threads, logits.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = logits.Row(i);
      const int64_t target = InSlice(targets[i], first_class, logits.columns);
      sums[logits.rows + i] = target < 0 ? 0.0F : row[target];
      sums[i] = ExpRow(row, logits.columns, max[i]);
    }
  });
}

template <class T, class Width>
void LossKernels<T, Width>::CrossEntropyGrad(int threads, const Rows<const float>& exponentials, const float* max,
                                             const float* sums, const int32_t* targets, int64_t first_class,
                                             float grad_scale, const Rows<T>& gradient, double* row_losses) {
  const int64_t rows = exponentials.rows;
  const int64_t classes = exponentials.columns;
  ParallelFor(threads, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      row_losses[i] = LossOfRow(max[i], sums[i], sums[rows + i]);
      if (gradient.data != nullptr) {
        GradOfExp(exponentials.Row(i), classes, sums[i], InSlice(targets[i], first_class, classes), grad_scale,
                  gradient.Row(i));
      }
    }
  });
}

template struct SlicedLossKernels<CompiledWidth>;
template struct LossKernels<float, CompiledWidth>;
template struct LossKernels<BFloat16, CompiledWidth>;

template <class T, class Width>
void EmbeddingKernels<T, Width>::Embedding(int threads, const int32_t* tokens, const Rows<const T>& table,
                                           int64_t first_row, const Rows<T>& out) {
  const size_t bytes = static_cast<size_t>(out.columns) * sizeof(T);
  ParallelFor(threads, out.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = InSlice(tokens[i], first_row, table.rows);
      if (row >= 0) {
        std::memcpy(out.Row(i), table.Row(row), bytes);
      } else {
        std::memset(out.Row(i), 0, bytes);
      }
    }
  });
}

template <class T, class Width>
void EmbeddingKernels<T, Width>::EmbeddingGrad(int threads, const int32_t* tokens, const Rows<const T>& grad_out,
                                               int64_t first_row, const Rows<float>& grad_table) {
  // Threads divide the columns, so that every element is a sum in order of the tokens.
  ParallelFor(threads, grad_out.columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < grad_out.rows; ++i) {
      const int64_t row = InSlice(tokens[i], first_row, grad_table.rows);
      if (row < 0) {
        continue;
      }
      const T* in = grad_out.Row(i);
      float* out = grad_table.Row(row);
      ForLanes(begin, end, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(out + j, count, LoadUpTo(out + j, count) + LoadUpTo(in + j, count));
      });
    }
  });
}

template struct EmbeddingKernels<float, CompiledWidth>;
template struct EmbeddingKernels<BFloat16, CompiledWidth>;

}  // namespace geopipe::cpu
