// Matrices in a kernel: rows that lie `stride` elements apart, read and written a few elements at a time, as fp32.
#pragma once

#include "runtime/gpu/kernels/device_language.h"
#include "runtime/gpu/port/gpu_kernels.h"

namespace geopipe::gpu {

template <class T>
struct Rows {
  T* data;
  int64_t stride;
  bool vector;  // groups of elements, counted from a row's first, may be accessed as a whole

  __device__ T* At(int64_t row) const { return data + row * stride; }
};

constexpr int64_t kVectorBytes = 16;

// Rows that a kernel accesses in groups of `group` elements, or from columns that are a multiple of it.
template <class T, class Void>
Rows<T> RowsOf(Void* data, int64_t stride, int64_t group) {
  const auto bytes = group * static_cast<int64_t>(sizeof(T));
  const int64_t unit = bytes < kVectorBytes ? bytes : kVectorBytes;
  const bool begin = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(unit) == 0;
  return {static_cast<T*>(data), stride, begin && stride * static_cast<int64_t>(sizeof(T)) % unit == 0};
}

#if !defined(__CUDACC__)
template <class T>
Rows<T> OnProcessor(Rows<T> rows) {
  return {emulation::OnProcessor(rows.data), rows.stride, rows.vector};
}
#endif

__device__ inline float FloatOf(float value) { return value; }

template <class T>
__device__ inline T Rounded(float value) {
  if constexpr (sizeof(T) == 2) {
    return Bf16Of(value);
  } else {
    return value;
  }
}

// Words of kN elements, as large as one access may be.
template <int kBytes>
struct Words;
template <>
struct Words<8> {
  using Type = uint2;
};
template <>
struct Words<16> {
  using Type = uint4;
};

// values = from[0 .. count - 1], and `rest` from there on; count may be any. REQUIRES: if vector, `from` is aligned to
// a group of kN elements, or 16 bytes.
template <int kN, class T>
__device__ inline void Load(const T* from, bool vector, int64_t count, float (&values)[kN], float rest = 0) {
  if (vector && count >= kN) {
    constexpr int kBytes = kN * sizeof(T) < kVectorBytes ? kN * sizeof(T) : kVectorBytes;
    constexpr int kEach = kBytes / sizeof(T);
#pragma unroll
    for (int i = 0; i < kN; i += kEach) {
      using Word = typename Words<kBytes>::Type;
      const Word word = WordAt<Word>(from + i);
      T elements[kEach];
      memcpy(elements, &word, kBytes);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        values[i + j] = FloatOf(elements[j]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    values[i] = i < count ? FloatOf(from[i]) : rest;
  }
}

// to[0 .. count - 1] = values, rounded. REQUIRES: as above.
template <int kN, class T>
__device__ inline void Store(T* to, bool vector, int64_t count, const float (&values)[kN]) {
  if (vector && count >= kN) {
    constexpr int kBytes = kN * sizeof(T) < kVectorBytes ? kN * sizeof(T) : kVectorBytes;
    constexpr int kEach = kBytes / sizeof(T);
#pragma unroll
    for (int i = 0; i < kN; i += kEach) {
      using Word = typename Words<kBytes>::Type;
      T elements[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        elements[j] = Rounded<T>(values[i + j]);
      }
      Word word;
      memcpy(&word, elements, kBytes);
      WordAt<Word>(to + i) = word;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (i < count) {
      to[i] = Rounded<T>(values[i]);
    }
  }
}

// Calls f(T()) with the type of the elements, and returns what it does; kInvalidValue for types that kernels lack.
template <class F>
int32_t WithType(GpDType dtype, const F& f) {
  switch (dtype) {
    case kGpFp32:
      return f(float());
    case kGpBf16:
      return f(Bf16());
    default:
      return kInvalidValue;
  }
}

// Number of parts of `part` that `whole` has, the last of which may be smaller.
template <class T>
__host__ __device__ inline T Parts(T whole, T part) {
  return (whole + part - 1) / part;
}

}  // namespace geopipe::gpu
