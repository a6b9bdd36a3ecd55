// Sums and maxima over the threads of a warp and of a block, in an order that their number alone decides.
#pragma once

#include "runtime/gpu/kernels/device_language.h"

namespace geopipe::gpu {

constexpr int kWarp = 32;

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Greater {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

// The fold of all lanes' values, on every lane. REQUIRES: f(a, b) == f(b, a), to the bit.
template <class T, class Fold>
__device__ inline T FoldWarp(T value, const Fold& fold) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fold(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  return value;
}

// The fold of all values of a team of kTeam threads, on each of them: a warp, or the whole block. Of a block, calls
// alternate between the turns 0 and 1, so that one barrier a call is enough.
template <int kTeam, class T, class Fold>
__device__ inline T FoldTeam(T value, const Fold& fold, int turn) {
  value = FoldWarp(value, fold);
  if constexpr (kTeam > kWarp) {
    constexpr int kWarps = kTeam / kWarp;
    GP_SHARED(T, parts, 2 * kWarps);
    const int first = turn * kWarps;
    if (threadIdx.x % kWarp == 0) {
      parts[first + threadIdx.x / kWarp] = value;
    }
    __syncthreads();
    value = parts[first];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) {
      value = fold(value, parts[first + warp]);
    }
  }
  return value;
}

}  // namespace geopipe::gpu
