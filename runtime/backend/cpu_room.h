// What the kernels of a whole head (cpu_head_attention.h) share. Only for cpu_*.cc kernel files, as cpu_simd.h.
#pragma once

#include <utility>

#include "runtime/backend/cpu_head_attention.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {

#if defined(__AVX512F__)
inline namespace wide {
#else
inline namespace narrow {
#endif

constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
constexpr int64_t AtMost(int64_t value, int64_t bound) { return value < bound ? value : bound; }
constexpr int64_t AtLeast(int64_t value, int64_t bound) { return value > bound ? value : bound; }

// Hands out parts of a room, from null on to measure one.
class Parts {
 public:
  explicit GP_CPU_BODY Parts(RoomLine* room) : next_(reinterpret_cast<uintptr_t>(room)) {}

  template <class T>
  GP_CPU_BODY T* Take(int64_t count) {
    auto* const part = reinterpret_cast<T*>(next_);
    next_ += static_cast<uintptr_t>(RoundUp(count * static_cast<int64_t>(sizeof(T)), sizeof(RoomLine)));
    return part;
  }

  // Of a room from null on.
  GP_CPU_BODY int64_t lines() const { return static_cast<int64_t>(next_ / sizeof(RoomLine)); }

 private:
  uintptr_t next_;
};

template <class T>
GP_CPU_INLINE Rows<T> Block(const Rows<T>& x, int64_t first, int64_t rows) {
  return {x.Row(first), rows, x.columns, x.stride};
}

// The first key that queries from `query` on see.
template <class T>
GP_CPU_INLINE int64_t FirstSeen(const AttentionHead<T>& head, int64_t query) {
  return head.starts == nullptr ? 0 : head.starts[query];
}

template <int64_t kStep, bool kSecond, int64_t... kLane>
GP_CPU_INLINE FloatVector Exchange(FloatVector a, FloatVector b, std::integer_sequence<int64_t, kLane...> /*lanes*/) {
  constexpr int64_t kB = sizeof...(kLane);
  if constexpr (kSecond) {
    return __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? kLane + kStep : kLane + kB)...);
  } else {
    return __builtin_shufflevector(a, b, ((kLane & kStep) == 0 ? kLane : kLane - kStep + kB)...);
  }
}

template <int64_t kStep>
GP_CPU_INLINE void TransposeFrom(FloatVector (&rows)[kVectorLanes]) {
  if constexpr (kStep < kVectorLanes) {
    using Lanes = std::make_integer_sequence<int64_t, kVectorLanes>;
    for (int64_t i = 0; i < kVectorLanes; ++i) {
      if ((i & kStep) == 0) {
        const FloatVector first = rows[i];
        rows[i] = Exchange<kStep, false>(first, rows[i + kStep], Lanes());
        rows[i + kStep] = Exchange<kStep, true>(first, rows[i + kStep], Lanes());
      }
    }
    TransposeFrom<2 * kStep>(rows);
  }
}

// Transposes kVectorLanes rows of as many lanes: blocks of one lane change places, then of two, four, ….
GP_CPU_INLINE void Transpose(FloatVector (&rows)[kVectorLanes]) { TransposeFrom<1>(rows); }

}  // namespace wide, narrow

}  // namespace geopipe::cpu
