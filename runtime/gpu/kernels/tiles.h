// Division of the elements of a matrix among threads, for kernels in which each works by itself.
#pragma once

#include "runtime/gpu/kernels/rows.h"

namespace geopipe::gpu {

constexpr int kTileThreads = 128;  // of a block
constexpr int kGroup = 8;          // consecutive elements of a row that a thread has
constexpr int64_t kTile = int64_t{kTileThreads} * kGroup;

// Blocks for a matrix: each has a part of a row.
struct Tiling {
  int64_t columns;
  unsigned of_row;  // blocks of a row

  explicit Tiling(int64_t columns) : columns(columns), of_row(static_cast<unsigned>(Parts(columns, kTile))) {}

  dim3 Grid(int64_t rows) const { return dim3(static_cast<unsigned>(rows * of_row)); }
  __device__ int64_t Row() const { return blockIdx.x / of_row; }
  // Column of this thread's first element; `columns` or more where it has none.
  __device__ int64_t Column() const {
    return (static_cast<int64_t>(blockIdx.x % of_row) * kTileThreads + threadIdx.x) * kGroup;
  }
};

}  // namespace geopipe::gpu
