// The language of the kernels: CUDA C++ for nvcc, and what stands for it where the host's compiler builds the same
// sources for a processor (fibers.h). Kernels use loads, stores, shuffles and barriers, and nothing beyond this header.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include "runtime/gpu/kernels/fibers.h"
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names.
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier)
#endif

namespace geopipe::gpu {

// A bf16 number; storage only.
struct Bf16 {
  uint16_t bits;
};

#if defined(__CUDACC__)

constexpr int32_t kInvalidValue = cudaErrorInvalidValue;

// An array of `count` elements that the threads of a block share, called `name`.
#define GP_SHARED(type, name, count) __shared__ type name[count]

// Enqueues a kernel of grid.x * grid.y blocks. Returns 0 or the error's number.
template <class... Parameters, class... Arguments>
int32_t Launch(void* stream, dim3 grid, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
  kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream)>>>(Parameters(arguments)...);
  return cudaGetLastError();
}

// The elements at an address, as one word. REQUIRES: the address is a multiple of the word's size.
template <class Word>
__device__ inline Word& WordAt(void* address) {
  return *static_cast<Word*>(address);
}
template <class Word>
__device__ inline const Word& WordAt(const void* address) {
  return *static_cast<const Word*>(address);
}

__device__ inline float FloatOf(Bf16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }
__device__ inline Bf16 Bf16Of(float value) { return {__bfloat16_as_ushort(__float2bfloat16_rn(value))}; }

#else

constexpr int32_t kInvalidValue = 1;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

#define GP_SHARED(type, name, count)  \
  static const char name##_place = 0; \
  auto* const name = ::geopipe::gpu::emulation::Shared<type>(&name##_place, count)

template <class... Parameters, class... Arguments>
int32_t Launch(void* stream, dim3 grid, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
  return emulation::Submit(stream, [=] {
    using emulation::OnProcessor;  // structs of addresses have their own beside them
    const std::tuple on_processor(OnProcessor(Parameters(arguments))...);
    emulation::Run(grid, threads, [&] { std::apply(kernel, on_processor); });
  });
}

template <class Word>
Word& WordAt(void* address) {
  emulation::CheckAligned(address, sizeof(Word));
  return *static_cast<Word*>(address);
}
template <class Word>
const Word& WordAt(const void* address) {
  emulation::CheckAligned(address, sizeof(Word));
  return *static_cast<const Word*>(address);
}

inline float FloatOf(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}
// To the nearest, ties to even; a NaN stays one.
inline Bf16 Bf16Of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = value == value ? bits + 0x7fffU + (bits >> 16 & 1U) : bits | 0x400000U;
  return {static_cast<uint16_t>(rounded >> 16)};
}

#endif

}  // namespace geopipe::gpu
