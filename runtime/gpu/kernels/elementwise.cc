#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/reduce.h"
#include "runtime/gpu/kernels/tiles.h"

namespace geopipe::gpu {
namespace {

__global__ void __launch_bounds__(kTileThreads)
    AxpyKernel(Tiling tiling, float alpha, Rows<const float> x, Rows<float> y) {
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  float value[kGroup];
  float sum[kGroup];
  Load(x.data + j, x.vector, count, value);
  Load(y.data + j, y.vector, count, sum);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    sum[i] += alpha * value[i];
  }
  Store(y.data + j, y.vector, count, sum);
}

template <class From, class To>
__global__ void __launch_bounds__(kTileThreads) ConvertKernel(Tiling tiling, Rows<const From> from, Rows<To> to) {
  const int64_t row = tiling.Row();
  const int64_t j = tiling.Column();
  float value[kGroup];
  Load(from.At(row) + j, from.vector, tiling.columns - j, value);
  Store(to.At(row) + j, to.vector, tiling.columns - j, value);
}

constexpr int kSumThreads = 256;
constexpr int kSumTile = 128;  // rows

// A block has a warp's width of columns. Its warps fetch a tile of rows, then the first adds them, one after the other.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    SumRowsKernel(int64_t rows, int64_t columns, Rows<const T> values, float* sums) {
  GP_SHARED(float, tile, kSumTile* kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const bool adds = warp == 0 && j < columns;
  float sum = adds ? sums[j] : 0.0F;
  for (int64_t begin = 0; begin < rows; begin += kSumTile) {
    const int count = static_cast<int>(rows - begin < kSumTile ? rows - begin : kSumTile);
    if (begin > 0) {
      __syncthreads();  // the tile before has been added
    }
#pragma unroll 8
    for (int i = warp; i < count; i += kSumThreads / kWarp) {
      tile[i * kWarp + lane] = j < columns ? FloatOf(values.At(begin + i)[j]) : 0.0F;
    }
    __syncthreads();
    for (int i = 0; adds && i < count; ++i) {
      sum += tile[i * kWarp + lane];
    }
  }
  if (adds) {
    sums[j] = sum;
  }
}

}  // namespace

int32_t Axpy(const GpAxpy* args, void* stream) {
  if (args->size == 0) {
    return 0;
  }
  const Tiling tiling(args->size);
  return Launch(stream, tiling.Grid(1), kTileThreads, AxpyKernel, tiling, args->alpha,
                RowsOf<const float>(args->x, 0, kGroup), RowsOf<float>(args->y, 0, kGroup));
}

int32_t Convert(const GpConvert* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  const Tiling tiling(args->columns);
  return WithType(args->from_type, [&]<class From>(From) {
    return WithType(args->to_type, [&]<class To>(To) {
      return Launch(stream, tiling.Grid(args->rows), kTileThreads, ConvertKernel<From, To>, tiling,
                    RowsOf<const From>(args->from, args->from_stride, kGroup),
                    RowsOf<To>(args->to, args->to_stride, kGroup));
    });
  });
}

int32_t SumRows(const GpSumRows* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, dim3(static_cast<unsigned>(Parts(args->columns, int64_t{kWarp}))), kSumThreads,
                  SumRowsKernel<T>, args->rows, args->columns, RowsOf<const T>(args->values, args->values_stride, 1),
                  args->sum);
  });
}

}  // namespace geopipe::gpu
