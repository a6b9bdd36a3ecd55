#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/tiles.h"

namespace geopipe::gpu {
namespace {

__device__ inline float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    SwiGluKernel(Tiling tiling, Rows<const T> gate, Rows<const T> up, Rows<T> out) {
  const int64_t row = tiling.Row();
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  float g[kGroup];
  float u[kGroup];
  Load(gate.At(row) + j, gate.vector, count, g);
  Load(up.At(row) + j, up.vector, count, u);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    g[i] = g[i] * Sigmoid(g[i]) * u[i];
  }
  Store(out.At(row) + j, out.vector, count, g);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    SwiGluGradKernel(Tiling tiling, Rows<const T> gate, Rows<const T> up, Rows<const T> grad_out, Rows<T> grad_gate,
                     Rows<T> grad_up) {
  const int64_t row = tiling.Row();
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  float g[kGroup];
  float u[kGroup];
  float d[kGroup];
  Load(gate.At(row) + j, gate.vector, count, g);
  Load(up.At(row) + j, up.vector, count, u);
  Load(grad_out.At(row) + j, grad_out.vector, count, d);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float sigmoid = Sigmoid(g[i]);
    const float silu = g[i] * sigmoid;
    g[i] = d[i] * u[i] * (sigmoid + silu * (1.0F - sigmoid));
    u[i] = d[i] * silu;
  }
  Store(grad_gate.At(row) + j, grad_gate.vector, count, g);
  Store(grad_up.At(row) + j, grad_up.vector, count, u);
}

}  // namespace

int32_t SwiGlu(const GpSwiGlu* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  const Tiling tiling(args->columns);
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, tiling.Grid(args->rows), kTileThreads, SwiGluKernel<T>, tiling,
                  RowsOf<const T>(args->gate, args->gate_stride, kGroup),
                  RowsOf<const T>(args->up, args->up_stride, kGroup), RowsOf<T>(args->out, args->out_stride, kGroup));
  });
}

int32_t SwiGluGrad(const GpSwiGluGrad* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  const Tiling tiling(args->columns);
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, tiling.Grid(args->rows), kTileThreads, SwiGluGradKernel<T>, tiling,
                  RowsOf<const T>(args->gate, args->gate_stride, kGroup),
                  RowsOf<const T>(args->up, args->up_stride, kGroup),
                  RowsOf<const T>(args->grad_out, args->grad_out_stride, kGroup),
                  RowsOf<T>(args->grad_gate, args->grad_gate_stride, kGroup),
                  RowsOf<T>(args->grad_up, args->grad_up_stride, kGroup));
  });
}

}  // namespace geopipe::gpu
