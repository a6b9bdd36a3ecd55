// Kernels compiled for AVX2 on x86-64. This file includes no header with code that other files share, lest the linker
// take such code from here.
#include "runtime/collective/reduce_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>

namespace geopipe::collective {
namespace {

using F32x8 = float __attribute__((vector_size(32)));
using F64x4 = double __attribute__((vector_size(32)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));

#define GP_INLINE static inline __attribute__((always_inline))

// A type of elements: its memory layout, the lanes to calculate with, and the conversions between the two.
template <class LanesType, int64_t kElementBytes>
struct Plain {
  static constexpr int64_t kBytes = kElementBytes;
  using Lanes = LanesType;
  GP_INLINE Lanes Load(const std::byte* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
  GP_INLINE void Store(std::byte* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }
};
using Fp32 = Plain<F32x8, 4>;
using Fp64 = Plain<F64x4, 8>;
using Int32 = Plain<U32x8, 4>;  // unsigned, because sums wrap around

struct Bf16 {
  static constexpr int64_t kBytes = 2;
  using Lanes = F32x8;
  GP_INLINE Lanes Load(const std::byte* from) {
    U16x8 half;
    std::memcpy(&half, from, sizeof(half));
    const U32x8 bits = __builtin_convertvector(half, U32x8) << 16;
    Lanes lanes;
    std::memcpy(&lanes, &bits, sizeof(lanes));
    return lanes;
  }
  GP_INLINE void Store(std::byte* to, Lanes lanes) {
    U32x8 bits;
    std::memcpy(&bits, &lanes, sizeof(bits));
    const U32x8 nearest_even = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    const I32x8 is_nan = lanes != lanes;
    const U16x8 half = __builtin_convertvector(is_nan ? (bits >> 16 | 0x40U) : nearest_even, U16x8);
    std::memcpy(to, &half, sizeof(half));
  }
};

struct Plus {
  template <class Type>
  GP_INLINE typename Type::Lanes Of(typename Type::Lanes a, typename Type::Lanes b) {
    return a + b;
  }
};

// `b` where it is greater or NaN, else `a`.
GP_INLINE F32x8 Greatest(F32x8 a, F32x8 b) { return ((b > a) | (b != b)) ? b : a; }
GP_INLINE F64x4 Greatest(F64x4 a, F64x4 b) { return ((b > a) | (b != b)) ? b : a; }
GP_INLINE U32x8 Greatest(U32x8 a, U32x8 b) { return (I32x8)b > (I32x8)a ? b : a; }

struct Greater {
  template <class Type>
  GP_INLINE typename Type::Lanes Of(typename Type::Lanes a, typename Type::Lanes b) {
    return Greatest(a, b);
  }
};

template <class Type>
inline constexpr int64_t kLanes = sizeof(typename Type::Lanes) / sizeof(typename Type::Lanes{}[0]);

// Reduces `kVectors` vectors from byte `at` on.
template <class Type, class Operation, int kVectors>
GP_INLINE void Block(const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t at) {
  constexpr int64_t kStride = kLanes<Type> * Type::kBytes;
  typename Type::Lanes result[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    result[v] = Type::Load(sources[0] + at + v * kStride);
  }
  for (int32_t rank = 1; rank < ranks; ++rank) {
    const std::byte* source = sources[rank] + at;
    for (int v = 0; v < kVectors; ++v) {
      result[v] = Operation::template Of<Type>(result[v], Type::Load(source + v * kStride));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    Type::Store(out + at + v * kStride, result[v]);
  }
}

template <class Type, class Operation>
void Fold(const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count) {
  constexpr int kVectors = 8;
  constexpr int64_t kStride = kLanes<Type> * Type::kBytes;
  const int64_t bytes = count * Type::kBytes;
  int64_t at = 0;
  for (; at + kVectors * kStride <= bytes; at += kVectors * kStride) {
    Block<Type, Operation, kVectors>(sources, ranks, out, at);
  }
  for (; at + kStride <= bytes; at += kStride) {
    Block<Type, Operation, 1>(sources, ranks, out, at);
  }
  if (at == bytes) {
    return;
  }
  // The rest is computed in vectors, too, so that all elements are computed alike.
  const auto rest = static_cast<size_t>(bytes - at);
  std::byte result[kStride] = {};
  std::memcpy(result, sources[0] + at, rest);
  typename Type::Lanes sum = Type::Load(result);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    std::memcpy(result, sources[rank] + at, rest);
    sum = Operation::template Of<Type>(sum, Type::Load(result));
  }
  Type::Store(result, sum);
  std::memcpy(out + at, result, rest);
}

template <class Operation>
void FoldType(ReducedType type, const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count) {
  switch (type) {
    case ReducedType::kFp32:
      return Fold<Fp32, Operation>(sources, ranks, out, count);
    case ReducedType::kBf16:
      return Fold<Bf16, Operation>(sources, ranks, out, count);
    case ReducedType::kFp64:
      return Fold<Fp64, Operation>(sources, ranks, out, count);
    case ReducedType::kInt32:
      return Fold<Int32, Operation>(sources, ranks, out, count);
  }
}

}  // namespace

void CopyPastCaches(const std::byte* from, std::byte* to, int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t kLine = 64;
  const int64_t unaligned = -reinterpret_cast<intptr_t>(to) & (kLine - 1);
  const int64_t head = unaligned < bytes ? unaligned : bytes;
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at) + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at) + 1, high);
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
  _mm_sfence();  // such stores are not in order with others
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

bool ReduceKernelsRun() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return true;
#endif
}

void Sum(ReducedType type, const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count) {
  FoldType<Plus>(type, sources, ranks, out, count);
}

void Max(ReducedType type, const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count) {
  FoldType<Greater>(type, sources, ranks, out, count);
}

}  // namespace geopipe::collective
