// Eight fp32 lanes on the compiler's vector extension, loaded from and stored to fp32 or bf16. Lanes are explicit, not
// auto-vectorised reductions: a sum has the order written here, whatever the alignment of the data.
//
// Only for the cpu_*.cc kernel files, which are compiled for AVX2 and include nothing that other files share.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/tensor/bfloat16.h"

namespace geopipe::cpu {

using F32x8 = float __attribute__((vector_size(32)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
inline constexpr int64_t kLanes = 8;

#define GP_CPU_INLINE static inline __attribute__((always_inline))
#define GP_CPU_BODY __attribute__((always_inline))

GP_CPU_INLINE F32x8 Splat(float value) { return F32x8{} + value; }

// Memory is accessed by memcpy alone: a row of bf16 may be written over the fp32 row that it is converted from.
GP_CPU_INLINE F32x8 Load(const float* from) {
  F32x8 result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

GP_CPU_INLINE F32x8 Load(const BFloat16* from) {
  U16x8 bits;
  std::memcpy(&bits, from, sizeof(bits));
  const U32x8 wide = __builtin_convertvector(bits, U32x8) << 16;
  F32x8 result;
  std::memcpy(&result, &wide, sizeof(result));
  return result;
}

GP_CPU_INLINE void Store(float* to, F32x8 value) { std::memcpy(to, &value, sizeof(value)); }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
GP_CPU_INLINE void Store(BFloat16* to, F32x8 value) {
  U32x8 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const U32x8 rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const U16x8 narrow = __builtin_convertvector(value == value ? rounded : (bits >> 16) | 0x40U, U16x8);
  std::memcpy(to, &narrow, sizeof(narrow));
}

GP_CPU_INLINE float LoadOne(const float* from) {
  float result = 0;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

GP_CPU_INLINE float LoadOne(const BFloat16* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  const uint32_t wide = uint32_t{bits} << 16;
  float result = 0;
  std::memcpy(&result, &wide, sizeof(result));
  return result;
}

// The first `count` lanes, 0 < count < kLanes; the others are `fill`.
template <class T>
GP_CPU_INLINE F32x8 LoadPartial(const T* from, int64_t count, float fill) {
  F32x8 result = Splat(fill);
  for (int64_t i = 0; i < count; ++i) {
    result[i] = LoadOne(from + i);
  }
  return result;
}

template <class T>
GP_CPU_INLINE void StorePartial(T* to, F32x8 value, int64_t count) {
  T lanes[kLanes];
  Store(lanes, value);
  for (int64_t i = 0; i < count && i < kLanes; ++i) {
    std::memcpy(to + i, lanes + i, sizeof(T));
  }
}

// `count` lanes, 0 < count <= kLanes; the others are 0.
template <class T>
GP_CPU_INLINE F32x8 LoadUpTo(const T* from, int64_t count) {
  return count == kLanes ? Load(from) : LoadPartial(from, count, 0);
}

template <class T>
GP_CPU_INLINE void StoreUpTo(T* to, int64_t count, F32x8 value) {
  if (count == kLanes) {
    Store(to, value);
  } else {
    StorePartial(to, value, count);
  }
}

// Calls body(j, count) for the elements of [begin, end), `count` of them from j on: a constant kLanes, but for the
// last. REQUIRES: the body is GP_CPU_BODY, so that the compiler sees the constant.
template <class Body>
GP_CPU_INLINE void ForLanes(int64_t begin, int64_t end, const Body& body) {
  int64_t j = begin;
  for (; j + kLanes <= end; j += kLanes) {
    body(j, kLanes);
  }
  if (j < end) {
    body(j, end - j);
  }
}

GP_CPU_INLINE float Sum(F32x8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

GP_CPU_INLINE F32x8 Sqrt(F32x8 x) {
#if defined(__AVX__)
  return __builtin_ia32_sqrtps256(x);
#else
  for (int64_t i = 0; i < kLanes; ++i) {
    x[i] = __builtin_sqrtf(x[i]);
  }
  return x;
#endif
}

GP_CPU_INLINE F32x8 Max(F32x8 a, F32x8 b) { return a > b ? a : b; }

GP_CPU_INLINE float Max(F32x8 x) {
  float result = x[0];
  for (int64_t i = 1; i < kLanes; ++i) {
    result = x[i] > result ? x[i] : result;
  }
  return result;
}

// e^x with a relative error below 2e-7; 0 below -87.3, the largest finite value's neighbourhood above 88.3.
// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor polynomial of degree 7, 2^n by the exponent bits.
GP_CPU_INLINE F32x8 Exp(F32x8 x) {
  constexpr float kLowest = -87.3F;
  constexpr float kHighest = 88.3F;
  const I32x8 underflow = x < kLowest;
  x = x < kLowest ? Splat(kLowest) : x;
  x = x > kHighest ? Splat(kHighest) : x;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits
  const F32x8 n = (x * 1.44269504F + kRoundToInteger) - kRoundToInteger;
  const F32x8 r = (x - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts: n * the first is exact
  F32x8 p = Splat(1.0F / 5040.0F);
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // Unsigned, because a NaN's integer overflows; the result is NaN all the same.
  const U32x8 exponent = ((U32x8) __builtin_convertvector(n, I32x8) + 127U) << 23;
  F32x8 power;
  std::memcpy(&power, &exponent, sizeof(power));
  const F32x8 result = p * power;
  return underflow ? Splat(0.0F) : result;
}

}  // namespace geopipe::cpu
