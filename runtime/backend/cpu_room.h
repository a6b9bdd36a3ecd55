// The kernels of a whole head (cpu_head_attention.h) share this. Only cpu_*.cc kernel files include it, as cpu_simd.h.
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

// Hands out parts of a room; of a room that is null, to measure one.
class Parts {
 public:
  explicit GP_CPU_BODY Parts(RoomLine* room) : room_(room) {}

  template <class T>
  GP_CPU_BODY T* Take(int64_t count) {
    constexpr auto kLine = static_cast<int64_t>(sizeof(RoomLine));
    RoomLine* const part = room_ == nullptr ? nullptr : room_ + lines_;
    lines_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), kLine) / kLine;
    return reinterpret_cast<T*>(part);
  }

  GP_CPU_BODY int64_t lines() const { return lines_; }

 private:
  RoomLine* room_;
  int64_t lines_ = 0;
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
