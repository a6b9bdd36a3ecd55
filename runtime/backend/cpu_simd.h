// Sixteen fp32 lanes on the compiler's vector extension, loaded from and stored to fp32 or bf16: one vector of AVX-512
// or two of AVX2. Lanes are explicit, not auto-vectorised reductions: a sum has the order written here, whatever the
// width of the processor's vectors and the alignment of the data.
//
// Only for the cpu_*.cc kernel files, which are compiled once for each width and include nothing that other files
// share.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "runtime/backend/cpu_kernels.h"
#include "runtime/tensor/bfloat16.h"

namespace geopipe::cpu {

// Types of the two compilations have different names.
#if defined(__AVX512F__)
inline namespace wide {
inline constexpr int64_t kVectorBytes = 64;
using CompiledWidth = Wide;
#else
inline namespace narrow {
inline constexpr int64_t kVectorBytes = 32;
using CompiledWidth = Narrow;
#endif

using FloatVector = float __attribute__((vector_size(kVectorBytes)));
using Int32Vector = int32_t __attribute__((vector_size(kVectorBytes)));
using Uint32Vector = uint32_t __attribute__((vector_size(kVectorBytes)));
using Uint16Vector = uint16_t __attribute__((vector_size(kVectorBytes / 2)));

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kVectorLanes = kVectorBytes / 4;
inline constexpr int64_t kVectors = kLanes / kVectorLanes;

#define GP_CPU_INLINE static inline __attribute__((always_inline))
#define GP_CPU_BODY __attribute__((always_inline))

struct F32 {
  FloatVector part[kVectors];

  float operator[](int64_t lane) const { return part[lane / kVectorLanes][lane % kVectorLanes]; }
};

// Applies `f` to the parts.
template <class F>
GP_CPU_INLINE F32 Each(const F& f) {
  F32 result;
  for (int64_t i = 0; i < kVectors; ++i) {
    result.part[i] = f(i);
  }
  return result;
}

GP_CPU_INLINE F32 Splat(float value) {
  return Each([&](int64_t) GP_CPU_BODY {
#if defined(__AVX512F__)
    return (FloatVector)_mm512_set1_ps(value);
#elif defined(__AVX2__)
    return (FloatVector)_mm256_set1_ps(value);
#else
    return FloatVector{} + value;
#endif
  });
}

GP_CPU_INLINE F32 operator+(F32 a, F32 b) {
  return Each([&](int64_t i) GP_CPU_BODY { return a.part[i] + b.part[i]; });
}
GP_CPU_INLINE F32 operator-(F32 a, F32 b) {
  return Each([&](int64_t i) GP_CPU_BODY { return a.part[i] - b.part[i]; });
}
GP_CPU_INLINE F32 operator*(F32 a, F32 b) {
  return Each([&](int64_t i) GP_CPU_BODY { return a.part[i] * b.part[i]; });
}
GP_CPU_INLINE F32 operator/(F32 a, F32 b) {
  return Each([&](int64_t i) GP_CPU_BODY { return a.part[i] / b.part[i]; });
}
GP_CPU_INLINE F32 operator-(F32 a) {
  return Each([&](int64_t i) GP_CPU_BODY { return -a.part[i]; });
}
GP_CPU_INLINE F32 operator+(F32 a, float b) { return a + Splat(b); }
GP_CPU_INLINE F32 operator+(float a, F32 b) { return Splat(a) + b; }
GP_CPU_INLINE F32 operator-(F32 a, float b) { return a - Splat(b); }
GP_CPU_INLINE F32 operator-(float a, F32 b) { return Splat(a) - b; }
GP_CPU_INLINE F32 operator*(F32 a, float b) { return a * Splat(b); }
GP_CPU_INLINE F32 operator*(float a, F32 b) { return Splat(a) * b; }
GP_CPU_INLINE F32 operator/(float a, F32 b) { return Splat(a) / b; }
GP_CPU_INLINE F32 operator/(F32 a, float b) { return a / Splat(b); }
GP_CPU_INLINE F32& operator+=(F32& a, F32 b) { return a = a + b; }

// Memory is accessed by memcpy alone: a row of bf16 may be written over the fp32 row that it is converted from.
GP_CPU_INLINE F32 Load(const float* from) {
  F32 result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

GP_CPU_INLINE F32 Load(const BFloat16* from) {
  return Each([&](int64_t i) GP_CPU_BODY {
    Uint16Vector bits;
    std::memcpy(&bits, from + i * kVectorLanes, sizeof(bits));
    const Uint32Vector wide_bits = __builtin_convertvector(bits, Uint32Vector) << 16;
    FloatVector result;
    std::memcpy(&result, &wide_bits, sizeof(result));
    return result;
  });
}

GP_CPU_INLINE void Store(float* to, F32 value) { std::memcpy(to, &value, sizeof(value)); }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
GP_CPU_INLINE void Store(BFloat16* to, F32 value) {
  for (int64_t i = 0; i < kVectors; ++i) {
    const FloatVector x = value.part[i];
    Uint32Vector bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const Uint32Vector rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Uint16Vector narrow_bits = __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40U, Uint16Vector);
    std::memcpy(to + i * kVectorLanes, &narrow_bits, sizeof(narrow_bits));
  }
}

GP_CPU_INLINE float LoadOne(const float* from) {
  float result = 0;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

GP_CPU_INLINE float LoadOne(const BFloat16* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  const uint32_t wide_bits = uint32_t{bits} << 16;
  float result = 0;
  std::memcpy(&result, &wide_bits, sizeof(result));
  return result;
}

// The first `count` lanes, 0 <= count < kLanes; the others are `fill`.
template <class T>
GP_CPU_INLINE F32 LoadPartial(const T* from, int64_t count, float fill) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    lanes[i] = i < count ? LoadOne(from + i) : fill;
  }
  return Load(lanes);
}

template <class T>
GP_CPU_INLINE void StorePartial(T* to, F32 value, int64_t count) {
  T lanes[kLanes];
  Store(lanes, value);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(T));
}

// `count` lanes, 0 < count <= kLanes; the others are 0.
template <class T>
GP_CPU_INLINE F32 LoadUpTo(const T* from, int64_t count) {
  return count == kLanes ? Load(from) : LoadPartial(from, count, 0);
}

template <class T>
GP_CPU_INLINE void StoreUpTo(T* to, int64_t count, F32 value) {
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

// The first `count` lanes; zero in the others.
GP_CPU_INLINE F32 FirstLanes(F32 x, int64_t count) {
  float lanes[kLanes];
  Store(lanes, x);
  return LoadPartial(lanes, count, 0);
}

// Folds the lanes as a tree: 16 to 8, 4, 2, 1.
template <class Fold>
GP_CPU_INLINE float FoldLanes(F32 x, const Fold& fold) {
#if defined(__AVX512F__)
  const auto eight = fold(__builtin_shufflevector(x.part[0], x.part[0], 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(x.part[0], x.part[0], 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const auto eight = fold(x.part[0], x.part[1]);
#endif
  const auto four =
      fold(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  return fold(fold(four[0], four[2]), fold(four[1], four[3]));
}

GP_CPU_INLINE float Sum(F32 x) {
  return FoldLanes(x, [](auto a, auto b) GP_CPU_BODY { return a + b; });
}

// a * b + c, rounded once.
GP_CPU_INLINE FloatVector MultiplyAdd(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return (FloatVector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (FloatVector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  FloatVector result;
  for (int64_t lane = 0; lane < kVectorLanes; ++lane) {
    result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  }
  return result;
#endif
}
GP_CPU_INLINE FloatVector MultiplyAdd(FloatVector a, FloatVector b, float c) {
  return MultiplyAdd(a, b, FloatVector{} + c);
}
GP_CPU_INLINE F32 MultiplyAdd(F32 a, F32 b, F32 c) {
  return Each([&](int64_t i) GP_CPU_BODY { return MultiplyAdd(a.part[i], b.part[i], c.part[i]); });
}

GP_CPU_INLINE F32 Sqrt(F32 x) {
  return Each([&](int64_t i) GP_CPU_BODY {
#if defined(__AVX512F__)
    return (FloatVector)_mm512_maskz_sqrt_ps(0xffff, (__m512)x.part[i]);
#elif defined(__AVX2__)
    return (FloatVector)_mm256_sqrt_ps((__m256)x.part[i]);
#else
    FloatVector value = x.part[i];
    for (int64_t lane = 0; lane < kVectorLanes; ++lane) {
      value[lane] = __builtin_sqrtf(value[lane]);
    }
    return value;
#endif
  });
}

GP_CPU_INLINE F32 Max(F32 a, F32 b) {
  return Each([&](int64_t i) GP_CPU_BODY { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
}

GP_CPU_INLINE float Max(F32 x) {
  return FoldLanes(x, [](auto a, auto b) GP_CPU_BODY { return b > a ? b : a; });
}

// e^x with a relative error below 2e-7; 0 below -87.3, the largest finite value's neighbourhood above 88.3.
// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor polynomial of degree 7, 2^n by the exponent bits.
GP_CPU_INLINE F32 Exp(F32 argument) {
  constexpr float kLowest = -87.3F;
  constexpr float kHighest = 88.3F;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits
  return Each([&](int64_t i) GP_CPU_BODY {
    FloatVector x = argument.part[i];
    const Int32Vector underflow = x < kLowest;
    x = x < kLowest ? FloatVector{} + kLowest : x;
    x = x > kHighest ? FloatVector{} + kHighest : x;
    const FloatVector shifted = MultiplyAdd(x, FloatVector{} + 1.44269504F, kRoundToInteger);
    const FloatVector n = shifted - kRoundToInteger;
    FloatVector r = MultiplyAdd(n, FloatVector{} - 0.693359375F, x);  // ln 2 in two parts: n * the first is exact
    r = MultiplyAdd(n, FloatVector{} + 2.12194440e-4F, r);
    FloatVector p = FloatVector{} + 1.0F / 5040.0F;
    p = MultiplyAdd(p, r, 1.0F / 720.0F);
    p = MultiplyAdd(p, r, 1.0F / 120.0F);
    p = MultiplyAdd(p, r, 1.0F / 24.0F);
    p = MultiplyAdd(p, r, 1.0F / 6.0F);
    p = MultiplyAdd(p, r, 0.5F);
    p = MultiplyAdd(p, r, 1.0F);
    p = MultiplyAdd(p, r, 1.0F);
    Uint32Vector bits;  // whose last are n's
    std::memcpy(&bits, &shifted, sizeof(bits));
    const Uint32Vector exponent = (bits + 127U) << 23;
    FloatVector power;
    std::memcpy(&power, &exponent, sizeof(power));
    const FloatVector result = p * power;
    return underflow ? FloatVector{} : result;
  });
}

}  // namespace wide, narrow

}  // namespace geopipe::cpu
