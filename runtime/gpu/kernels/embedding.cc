#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/tiles.h"

namespace geopipe::gpu {
namespace {

// The rows [first, first + count) of the vocabulary's.
struct Slice {
  int64_t first;
  int64_t count;

  // Row of the slice that the token has; -1 when it is elsewhere.
  __device__ int64_t RowOf(int32_t token) const {
    const int64_t row = token - first;
    return row >= 0 && row < count ? row : -1;
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    EmbeddingKernel(Tiling tiling, const int32_t* tokens, Slice slice, Rows<const T> table, Rows<T> out) {
  const int64_t i = tiling.Row();
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  const int64_t row = slice.RowOf(tokens[i]);
  float value[kGroup] = {};
  if (row >= 0) {
    Load(table.At(row) + j, table.vector, count, value);
  }
  Store(out.At(i) + j, out.vector, count, value);
}

// The blocks of a token's first place add the gradients of all its places, in their order.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    EmbeddingGradKernel(Tiling tiling, const int32_t* tokens, int64_t places, Slice slice, Rows<const T> gradients,
                        Rows<float> table) {
  const int64_t place = tiling.Row();
  const int32_t token = tokens[place];
  const int64_t row = slice.RowOf(token);
  if (row < 0) {
    return;
  }
  int came_before = 0;
  for (int64_t i = threadIdx.x; i < place; i += kTileThreads) {
    came_before |= static_cast<int>(tokens[i] == token);
  }
  if (__syncthreads_or(came_before) != 0) {
    return;
  }
  const int64_t j = tiling.Column();
  const int64_t count = tiling.columns - j;
  float sum[kGroup];
  Load(table.At(row) + j, table.vector, count, sum);
  GP_SHARED(int, is_place, kTileThreads);
  bool was_read = false;  // is_place, of the tile before
  for (int64_t begin = place; begin < places; begin += kTileThreads) {
    if (was_read) {
      __syncthreads();
    }
    const int64_t own = begin + threadIdx.x;
    const int is_own = static_cast<int>(own < places && tokens[own] == token);
    is_place[threadIdx.x] = is_own;
    was_read = __syncthreads_or(is_own) != 0;
    for (int i = 0; was_read && i < kTileThreads; ++i) {
      if (is_place[i] != 0) {
        float gradient[kGroup];
        Load(gradients.At(begin + i) + j, gradients.vector, count, gradient);
#pragma unroll
        for (int k = 0; k < kGroup; ++k) {
          sum[k] += gradient[k];
        }
      }
    }
  }
  Store(table.At(row) + j, table.vector, count, sum);
}

}  // namespace

int32_t Embedding(const GpEmbedding* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  const Tiling tiling(args->columns);
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, tiling.Grid(args->rows), kTileThreads, EmbeddingKernel<T>, tiling, args->tokens,
                  Slice{args->first_row, args->table_rows}, RowsOf<const T>(args->table, args->table_stride, kGroup),
                  RowsOf<T>(args->out, args->out_stride, kGroup));
  });
}

int32_t EmbeddingGrad(const GpEmbeddingGrad* args, void* stream) {
  if (args->rows == 0 || args->columns == 0) {
    return 0;
  }
  const Tiling tiling(args->columns);
  return WithType(args->dtype, [&]<class T>(T) {
    return Launch(stream, tiling.Grid(args->rows), kTileThreads, EmbeddingGradKernel<T>, tiling, args->tokens,
                  args->rows, Slice{args->first_row, args->table_rows},
                  RowsOf<const T>(args->grad_out, args->grad_out_stride, kGroup),
                  RowsOf<float>(args->grad_table, args->grad_table_stride, kGroup));
  });
}

}  // namespace geopipe::gpu
