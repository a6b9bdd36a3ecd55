// Softmax cross-entropy, whole and of slices of the classes. A block has a row, and reads it once from memory, then
// from the cache. The sliced kernels do what the whole one does, operation by operation, so that bits agree.
#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/reduce.h"
#include "runtime/gpu/kernels/rows.h"

namespace geopipe::gpu {
namespace {

constexpr int kN = 8;  // columns that a thread has at once
constexpr float kLowest = -3.0e38F;

// The row's greatest element, on every thread.
template <int kThreads>
__device__ inline float RowMax(const float* row, bool vector, int classes) {
  float max = kLowest;
  for (int j = static_cast<int>(threadIdx.x) * kN; j < classes; j += kThreads * kN) {
    float value[kN];
    Load(row + j, vector, classes - j, value, kLowest);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      max = Greater()(max, value[i]);
    }
  }
  return FoldTeam<kThreads>(max, Greater(), 0);
}

// The sum of exp(element - shift), on every thread. Stores the terms in `terms` unless that is null; it may be the row.
template <int kThreads>
__device__ inline float ExpSum(const float* row, bool vector, int classes, float shift, float* terms) {
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) * kN; j < classes; j += kThreads * kN) {
    float value[kN];
    Load(row + j, vector, classes - j, value);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      value[i] = expf(value[i] - shift);
      sum += j + i < classes ? value[i] : 0.0F;
    }
    if (terms != nullptr) {
      Store(terms + j, vector, classes - j, value);
    }
  }
  return FoldTeam<kThreads>(sum, Add(), 0);
}

__device__ inline double LossOfRow(float shift, float total, float target_logit) {
  return log(static_cast<double>(total)) + shift - target_logit;
}

// Place of a class in the slice of `size` classes that begins at `first`; -1 when it is elsewhere.
__device__ inline int InSlice(int32_t target, int64_t first, int size) {
  const int64_t at = target - first;
  return at >= 0 && at < size ? static_cast<int>(at) : -1;
}

// gradient = scale * (exp_of(element) / total - 1 where the target is). `row` and `gradient` may begin at the same
// address; `overlaps`: they do, and the gradient's elements are smaller.
template <int kThreads, class T, class Exp>
__device__ inline void StoreGradient(const float* row, bool row_vector, int classes, float total, int target,
                                     float scale, const Exp& exp_of, T* gradient, bool gradient_vector, bool overlaps) {
  const float factor = 1.0F / total;
  const int steps = Parts(classes, kThreads * kN);
  // Where rows overlap, step c writes over elements of steps up to c / 2, which all threads must have read by then. The
  // barrier of step c sees to that for steps up to 2 * c + 1.
  int barrier = 0;
  for (int c = 0; c < steps; ++c) {
    const int j = (c * kThreads + static_cast<int>(threadIdx.x)) * kN;
    float value[kN];
    Load(row + j, row_vector, classes - j, value);
    if (overlaps && c == barrier) {
      __syncthreads();
      barrier = 2 * c + 2;
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float share = exp_of(value[i]) * factor;
      value[i] = (j + i == target ? share - 1.0F : share) * scale;
    }
    Store(gradient + j, gradient_vector, classes - j, value);
  }
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyKernel(int classes, Rows<const float> logits, const int32_t* targets, float scale, Rows<T> gradient,
                       bool overlaps, double* losses) {
  const int64_t i = blockIdx.x;
  const float* const row = logits.At(i);
  const int target = targets[i];
  const float target_logit = row[target];
  const float shift = RowMax<kThreads>(row, logits.vector, classes);
  const float total = ExpSum<kThreads>(row, logits.vector, classes, shift, nullptr);
  if (threadIdx.x == 0) {
    losses[i] = LossOfRow(shift, total, target_logit);
  }
  if (gradient.data != nullptr) {
    StoreGradient<kThreads>(
        row, logits.vector, classes, total, target, scale, [=](float logit) { return expf(logit - shift); },
        gradient.At(i), gradient.vector, overlaps);
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) CrossEntropyMaxKernel(int classes, Rows<const float> logits, float* max) {
  const float of_row = RowMax<kThreads>(logits.At(blockIdx.x), logits.vector, classes);
  if (threadIdx.x == 0) {
    max[blockIdx.x] = of_row;
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    CrossEntropySumsKernel(int classes, Rows<float> logits, const float* max, const int32_t* targets,
                           int64_t first_class, float* sums) {
  const int64_t i = blockIdx.x;
  float* const row = logits.At(i);
  const int target = InSlice(targets[i], first_class, classes);
  // The thread that writes over the logit reads it.
  if (target >= 0 && target / kN % kThreads == static_cast<int>(threadIdx.x)) {
    sums[gridDim.x + i] = row[target];
  }
  const float sum = ExpSum<kThreads>(row, logits.vector, classes, max[i], row);
  if (threadIdx.x == 0) {
    sums[i] = sum;
    if (target < 0) {
      sums[gridDim.x + i] = 0;
    }
  }
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyGradKernel(int classes, Rows<const float> exponentials, const float* max, const float* sums,
                           const int32_t* targets, int64_t first_class, float scale, Rows<T> gradient, bool overlaps,
                           double* losses) {
  const int64_t i = blockIdx.x;
  if (threadIdx.x == 0) {
    losses[i] = LossOfRow(max[i], sums[i], sums[gridDim.x + i]);
  }
  if (gradient.data != nullptr) {
    StoreGradient<kThreads>(
        exponentials.At(i), exponentials.vector, classes, sums[i], InSlice(targets[i], first_class, classes), scale,
        [](float exponential) { return exponential; }, gradient.At(i), gradient.vector, overlaps);
  }
}

constexpr int kLossThreads = 128;
constexpr int kLossTile = 1024;

// loss += the losses, one after the other. One block.
__global__ void __launch_bounds__(kLossThreads) AddLossesKernel(const double* losses, int64_t rows, double* loss) {
  GP_SHARED(double, tile, kLossTile);
  double sum = threadIdx.x == 0 ? *loss : 0;
  for (int64_t begin = 0; begin < rows; begin += kLossTile) {
    const int count = static_cast<int>(rows - begin < kLossTile ? rows - begin : kLossTile);
    if (begin > 0) {
      __syncthreads();  // the tile before has been added
    }
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kLossThreads) {
      tile[i] = losses[begin + i];
    }
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < count; ++i) {
      sum += tile[i];
    }
  }
  if (threadIdx.x == 0) {
    *loss = sum;
  }
}

// Calls f(threads of a block), as a type, by the number of classes: few rows at once, so that they stay in the cache.
template <class F>
int32_t WithThreads(int64_t classes, const F& f) {
  constexpr int64_t kFew = 4096;
  return classes <= kFew ? f(std::integral_constant<int, 128>()) : f(std::integral_constant<int, 1024>());
}

dim3 GridOf(int64_t rows) { return dim3(static_cast<unsigned>(rows)); }

int32_t AddLosses(const double* losses, int64_t rows, double* loss, void* stream) {
  return Launch(stream, dim3(1), kLossThreads, AddLossesKernel, losses, rows, loss);
}

}  // namespace

int32_t CrossEntropy(const GpCrossEntropy* args, void* stream) {
  if (args->rows == 0) {
    return 0;
  }
  const int32_t error = WithType(args->gradient_type, [&]<class T>(T) {
    return WithThreads(args->classes, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
      return Launch(stream, GridOf(args->rows), kThreads, CrossEntropyKernel<T, kThreads>, args->classes,
                    RowsOf<const float>(args->logits, args->logits_stride, kN), args->targets, args->grad_scale,
                    RowsOf<T>(args->gradient, args->gradient_stride, kN),
                    sizeof(T) < sizeof(float) && args->gradient == args->logits, args->workspace);
    });
  });
  return error != 0 ? error : AddLosses(args->workspace, args->rows, args->loss, stream);
}

int32_t CrossEntropyMax(const GpCrossEntropyMax* args, void* stream) {
  if (args->rows == 0) {
    return 0;
  }
  return WithThreads(args->classes, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    return Launch(stream, GridOf(args->rows), kThreads, CrossEntropyMaxKernel<kThreads>, args->classes,
                  RowsOf<const float>(args->logits, args->logits_stride, kN), args->max);
  });
}

int32_t CrossEntropySums(const GpCrossEntropySums* args, void* stream) {
  if (args->rows == 0) {
    return 0;
  }
  return WithThreads(args->classes, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    return Launch(stream, GridOf(args->rows), kThreads, CrossEntropySumsKernel<kThreads>, args->classes,
                  RowsOf<float>(args->logits, args->logits_stride, kN), args->max, args->targets, args->first_class,
                  args->sums);
  });
}

int32_t CrossEntropyGrad(const GpCrossEntropyGrad* args, void* stream) {
  if (args->rows == 0) {
    return 0;
  }
  const int32_t error = WithType(args->gradient_type, [&]<class T>(T) {
    return WithThreads(args->classes, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
      return Launch(stream, GridOf(args->rows), kThreads, CrossEntropyGradKernel<T, kThreads>, args->classes,
                    RowsOf<const float>(args->exponentials, args->exponentials_stride, kN), args->max, args->sums,
                    args->targets, args->first_class, args->grad_scale,
                    RowsOf<T>(args->gradient, args->gradient_stride, kN),
                    sizeof(T) < sizeof(float) && args->gradient == args->exponentials, args->workspace);
    });
  });
  return error != 0 ? error : AddLosses(args->workspace, args->rows, args->loss, stream);
}

}  // namespace geopipe::gpu
