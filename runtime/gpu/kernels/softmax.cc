// Softmax of causal attention whose scores lie in memory, and its gradient. A warp has a row.
#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/reduce.h"
#include "runtime/gpu/kernels/rows.h"

namespace geopipe::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kN = 4;  // columns that a lane has at once
constexpr int kStep = kN * kWarp;
constexpr float kLowest = -3.0e38F;

struct Shape {
  int64_t rows;  // of all matrices
  int heads;
  int sequence;
  float scale;
};

// The columns [begin, end) that a row sees.
struct Seen {
  int begin;
  int end;

  __device__ bool Has(int column) const { return begin <= column && column < end; }
};

__device__ inline Seen SeenBy(int64_t row, const Shape& shape, const int32_t* starts) {
  const int position = static_cast<int>(row % shape.sequence);
  const int64_t sample = row / shape.sequence / shape.heads;
  return {starts == nullptr ? 0 : starts[sample * shape.sequence + position], position + 1};
}

__device__ inline int64_t RowOfWarp() {
  return static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    CausalSoftmaxKernel(Shape shape, const int32_t* starts, Rows<const float> scores, Rows<T> probabilities,
                        float* statistics) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) {
    return;
  }
  const Seen seen = SeenBy(row, shape, starts);
  const float* const score = scores.At(row);
  const int first = static_cast<int>(threadIdx.x) % kWarp * kN;
  float max = kLowest;
  for (int j = first; j < seen.end; j += kStep) {
    float value[kN];
    Load(score + j, scores.vector, seen.end - j, value, kLowest);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      max = Greater()(max, seen.Has(j + i) ? value[i] : kLowest);
    }
  }
  const float shift = shape.scale * FoldWarp(max, Greater());
  float sum = 0;
  for (int j = first; j < seen.end; j += kStep) {
    float value[kN];
    Load(score + j, scores.vector, seen.end - j, value);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      sum += seen.Has(j + i) ? expf(value[i] * shape.scale - shift) : 0.0F;
    }
  }
  sum = FoldWarp(sum, Add());
  const float factor = 1.0F / sum;
  for (int j = first; j < shape.sequence; j += kStep) {
    float value[kN];
    Load(score + j, scores.vector, seen.end - j, value);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      value[i] = seen.Has(j + i) ? expf(value[i] * shape.scale - shift) * factor : 0.0F;
    }
    Store(probabilities.At(row) + j, probabilities.vector, shape.sequence - j, value);
  }
  if (threadIdx.x % kWarp == 0) {
    statistics[row] = shift + logf(sum);
  }
}

// The gradient of a score is scale * p * (g - sum(p * g)), where p = exp(scale * score - statistic).
template <class T>
__global__ void __launch_bounds__(kThreads)
    CausalSoftmaxGradKernel(Shape shape, const int32_t* starts, Rows<const float> scores, const float* statistics,
                            Rows<const float> gradients, Rows<T> probabilities, Rows<T> grad_scores) {
  const int64_t row = RowOfWarp();
  if (row >= shape.rows) {
    return;
  }
  const Seen seen = SeenBy(row, shape, starts);
  const float statistic = statistics[row];
  const int first = static_cast<int>(threadIdx.x) % kWarp * kN;
  const auto load = [&](int j, float(&p)[kN], float(&gradient)[kN]) {
    Load(scores.At(row) + j, scores.vector, seen.end - j, p);
    Load(gradients.At(row) + j, gradients.vector, seen.end - j, gradient);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const bool is_seen = seen.Has(j + i);
      p[i] = is_seen ? expf(p[i] * shape.scale - statistic) : 0.0F;
      gradient[i] = is_seen ? gradient[i] : 0.0F;
    }
  };
  float dot = 0;
  for (int j = first; j < seen.end; j += kStep) {
    float p[kN];
    float gradient[kN];
    load(j, p, gradient);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      dot += p[i] * gradient[i];
    }
  }
  dot = FoldWarp(dot, Add());
  for (int j = first; j < shape.sequence; j += kStep) {
    float p[kN];
    float gradient[kN];
    load(j, p, gradient);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      gradient[i] = shape.scale * p[i] * (gradient[i] - dot);
    }
    Store(probabilities.At(row) + j, probabilities.vector, shape.sequence - j, p);
    Store(grad_scores.At(row) + j, grad_scores.vector, shape.sequence - j, gradient);
  }
}

// The shape that the arguments of either kernel say.
template <class Args>
Shape ShapeOf(const Args& args) {
  return {.rows = args.matrices * args.sequence,
          .heads = static_cast<int>(args.heads),
          .sequence = static_cast<int>(args.sequence),
          .scale = args.scale};
}

dim3 GridOf(const Shape& shape) { return dim3(static_cast<unsigned>(Parts(shape.rows, int64_t{kThreads / kWarp}))); }

}  // namespace

int32_t CausalSoftmax(const GpCausalSoftmax* args, void* stream) {
  const Shape shape = ShapeOf(*args);
  if (shape.rows == 0) {
    return 0;
  }
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, GridOf(shape), kThreads, CausalSoftmaxKernel<T>, shape, args->starts,
                  RowsOf<const float>(args->scores, args->scores_stride, kN),
                  RowsOf<T>(args->probabilities, args->probabilities_stride, kN), args->statistics);
  });
}

int32_t CausalSoftmaxGrad(const GpCausalSoftmaxGrad* args, void* stream) {
  const Shape shape = ShapeOf(*args);
  if (shape.rows == 0) {
    return 0;
  }
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, GridOf(shape), kThreads, CausalSoftmaxGradKernel<T>, shape, args->starts,
                  RowsOf<const float>(args->scores, args->scores_stride, kN), args->statistics,
                  RowsOf<const float>(args->grad_probabilities, args->grad_probabilities_stride, kN),
                  RowsOf<T>(args->probabilities, args->probabilities_stride, kN),
                  RowsOf<T>(args->grad_scores, args->grad_scores_stride, kN));
  });
}

}  // namespace geopipe::gpu
