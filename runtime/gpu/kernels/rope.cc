#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/tiles.h"

namespace geopipe::gpu {
namespace {

// A thread turns kGroup pairs of a head.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    RopeKernel(Rows<T> x, unsigned sequence, int heads, int half, Rows<const float> cosine, Rows<const float> sine,
               float sign) {
  const unsigned row = blockIdx.x;
  const int groups = Parts(half, kGroup);  // of a head
  const int group = static_cast<int>(blockIdx.y * kTileThreads + threadIdx.x);
  if (group >= heads * groups) {
    return;
  }
  const int j = group % groups * kGroup;
  const int count = half - j;
  T* const first = x.At(row) + static_cast<int64_t>(group / groups) * 2 * half + j;
  T* const second = first + half;
  float a[kGroup];
  float b[kGroup];
  float level[kGroup];
  float turned[kGroup];
  Load(first, x.vector, count, a);
  Load(second, x.vector, count, b);
  Load(cosine.At(row % sequence) + j, cosine.vector, count, level);
  Load(sine.At(row % sequence) + j, sine.vector, count, turned);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float along = a[i];
    turned[i] = sign * turned[i];
    a[i] = along * level[i] - b[i] * turned[i];
    b[i] = b[i] * level[i] + along * turned[i];
  }
  Store(first, x.vector, count, a);
  Store(second, x.vector, count, b);
}

}  // namespace

int32_t Rope(const GpRope* args, void* stream) {
  const int64_t half = args->head_dim / 2;
  if (args->rows == 0 || args->heads * half == 0) {
    return 0;
  }
  const int64_t blocks_of_row = Parts(args->heads * Parts(half, int64_t{kGroup}), int64_t{kTileThreads});
  return WithType(args->dtype, [&]<class T>(T) {
    Rows<T> x = RowsOf<T>(args->x, args->x_stride, kGroup);
    x.vector = x.vector && half % kGroup == 0;
    return Launch(stream, dim3(static_cast<unsigned>(args->rows), static_cast<unsigned>(blocks_of_row)), kTileThreads,
                  RopeKernel<T>, x, args->sequence, args->heads, half, RowsOf<const float>(args->cosine, half, kGroup),
                  RowsOf<const float>(args->sine, half, kGroup), args->backward != 0 ? -1.0F : 1.0F);
  });
}

}  // namespace geopipe::gpu
