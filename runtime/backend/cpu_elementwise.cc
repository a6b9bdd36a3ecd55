#include <cmath>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

F32 Sigmoid(F32 x) __attribute__((always_inline));
inline F32 Sigmoid(F32 x) { return 1.0F / (1.0F + Exp(-x)); }

template <class T>
double BlockSumOfSquares(const T* values, int64_t count) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t lane = 0; lane < kSums; ++lane) {
      const double value = LoadOne(values + i + lane);
      sums[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const double value = LoadOne(values + i);
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

template <class From, class To>
void ConvertRun(const From* from, To* to, int64_t size) {
  ForLanes(0, size, [&](int64_t j, int64_t count) GP_CPU_BODY { StoreUpTo(to + j, count, LoadUpTo(from + j, count)); });
}

}  // namespace

template <class T, class Width>
void ElementwiseKernels<T, Width>::SwiGlu(int threads, const Rows<const T>& gate, const Rows<const T>& up,
                                          const Rows<T>& out) {
  ParallelFor(threads, gate.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ForLanes(0, gate.columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
        const F32 g = LoadUpTo(gate.Row(i) + j, count);
        const F32 u = LoadUpTo(up.Row(i) + j, count);
        StoreUpTo(out.Row(i) + j, count, g * Sigmoid(g) * u);
      });
    }
  });
}

template <class T, class Width>
void ElementwiseKernels<T, Width>::SwiGluGrad(int threads, const Rows<const T>& gate, const Rows<const T>& up,
                                              const Rows<const T>& grad_out, const Rows<T>& grad_gate,
                                              const Rows<T>& grad_up) {
  ParallelFor(threads, gate.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ForLanes(0, gate.columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
        const F32 g = LoadUpTo(gate.Row(i) + j, count);
        const F32 u = LoadUpTo(up.Row(i) + j, count);
        const F32 d = LoadUpTo(grad_out.Row(i) + j, count);
        const F32 sigmoid = Sigmoid(g);
        const F32 silu = g * sigmoid;
        StoreUpTo(grad_gate.Row(i) + j, count, d * u * (sigmoid + silu * (1.0F - sigmoid)));
        StoreUpTo(grad_up.Row(i) + j, count, d * silu);
      });
    }
  });
}

template <class T, class Width>
void ElementwiseKernels<T, Width>::SumRows(int threads, const Rows<const T>& values, float* sum) {
  // Threads divide the columns, so that every element is a sum in order of the rows.
  ParallelFor(threads, values.columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < values.rows; ++i) {
      const T* in = values.Row(i);
      ForLanes(begin, end, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(sum + j, count, LoadUpTo(sum + j, count) + LoadUpTo(in + j, count));
      });
    }
  });
}

template <class T, class Width>
void ElementwiseKernels<T, Width>::SumOfSquares(int threads, int64_t count, const T* values, double* block_sums) {
  const int64_t blocks = (count + kSumBlock - 1) / kSumBlock;
  ParallelFor(threads, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kSumBlock;
      block_sums[block] = BlockSumOfSquares(values + first, count - first < kSumBlock ? count - first : kSumBlock);
    }
  });
}

template struct ElementwiseKernels<float, CompiledWidth>;
template struct ElementwiseKernels<BFloat16, CompiledWidth>;

template <class Width>
template <class From, class To>
void VectorKernels<Width>::Convert(int threads, const Rows<const From>& from, const Rows<To>& to) {
  // Threads divide the elements, not the rows: a vector has only one.
  const int64_t runs = (from.columns + kSumBlock - 1) / kSumBlock;  // of a row
  ParallelFor(threads, from.rows * runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) {
      const int64_t first = run % runs * kSumBlock;
      const int64_t rest = from.columns - first;
      ConvertRun(from.Row(run / runs) + first, to.Row(run / runs) + first, rest < kSumBlock ? rest : kSumBlock);
    }
  });
}

template void VectorKernels<CompiledWidth>::Convert(int threads, const Rows<const float>& from, const Rows<float>& to);
template void VectorKernels<CompiledWidth>::Convert(int threads, const Rows<const float>& from,
                                                    const Rows<BFloat16>& to);
template void VectorKernels<CompiledWidth>::Convert(int threads, const Rows<const BFloat16>& from,
                                                    const Rows<float>& to);
template void VectorKernels<CompiledWidth>::Convert(int threads, const Rows<const BFloat16>& from,
                                                    const Rows<BFloat16>& to);

template <class Width>
void VectorKernels<Width>::Axpy(int threads, int64_t count, float alpha, const float* x, float* y) {
  ParallelFor(threads, count, kSumBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      y[i] += alpha * x[i];
    }
  });
}

template <class Width>
void VectorKernels<Width>::AdamW(int threads, int64_t count, const AdamWConstants& constants, float* parameter,
                                 const float* gradient, float* first_moment, float* second_moment,
                                 BFloat16* compute_weight) {
  const AdamWConstants c = constants;
  ParallelFor(threads, count, kSumBlock, [&](int64_t begin, int64_t end) {
    ForLanes(begin, end, [&](int64_t i, int64_t lanes) GP_CPU_BODY {
      const F32 g = LoadUpTo(gradient + i, lanes) * c.grad_scale;
      const F32 m = LoadUpTo(first_moment + i, lanes) * c.beta1 + g * c.one_minus_beta1;
      const F32 v = LoadUpTo(second_moment + i, lanes) * c.beta2 + g * g * c.one_minus_beta2;
      const F32 denominator = Sqrt(v) / c.sqrt_bias_correction2 + c.eps;
      const F32 p = LoadUpTo(parameter + i, lanes) * c.decay - c.step_size * (m / denominator);
      StoreUpTo(first_moment + i, lanes, m);
      StoreUpTo(second_moment + i, lanes, v);
      StoreUpTo(parameter + i, lanes, p);
      if (compute_weight != nullptr) {
        StoreUpTo(compute_weight + i, lanes, p);
      }
    });
  });
}

template struct VectorKernels<CompiledWidth>;

}  // namespace geopipe::cpu
