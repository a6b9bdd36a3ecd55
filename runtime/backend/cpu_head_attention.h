// One head of causal attention, as the kernels that compute it whole take it: by blocks of queries and keys, each in a
// room of its own whose size grows with the head's alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/cpu_kernels.h"

namespace geopipe::cpu {

// A piece of a room.
struct alignas(64) RoomLine {
  std::byte bytes[64];
};

// Matrices are [s, d].
template <class T>
struct AttentionHead {
  Rows<const T> query;
  Rows<const T> key;
  Rows<const T> value;
  const int32_t* starts;  // [s] as AttentionShape's, or null
  float scale;            // of scores
};

template <class T>
struct AttentionHeadGrad {
  Rows<const T> out;
  const float* statistics;  // [s]
  Rows<const T> grad_out;
  Rows<T> grad_query;
  float* grad_key;    // [s, d], whose rows lie together; added to
  float* grad_value;  // likewise
};

// cpu_block_attention.cc: on vectors of any width; bf16 is computed in fp32. Any number of threads, each with a room of
// its own.
template <class T, class Width>
struct BlockAttention {
  // The size of the room that the functions compute in.
  static int64_t RoomLines(int64_t head_dim);
  // statistics [s]: log of the sum of exp(scale * score).
  static void Forward(const AttentionHead<T>& head, const Rows<T>& out, float* statistics, RoomLine* room);
  static void Backward(const AttentionHead<T>& head, const AttentionHeadGrad<T>& grad, RoomLine* room);
};

// cpu_tile_attention.cc, built on x86-64 alone: by AMX tiles. What oneDNN's products would pack for every block is
// packed once, and gradients of scores are made where the next product wants them. REQUIRES: AmxWorks(), and Fits()
// the head.
struct TileAttention {
  // True for whole tiles of a size that the caches hold.
  static constexpr bool Fits(int64_t head_dim) { return head_dim % 32 == 0 && head_dim <= 256; }

  // The three do what BlockAttention's do.
  static int64_t RoomLines(int64_t head_dim);
  static void Forward(const AttentionHead<BFloat16>& head, const Rows<BFloat16>& out, float* statistics,
                      RoomLine* room);
  static void Backward(const AttentionHead<BFloat16>& head, const AttentionHeadGrad<BFloat16>& grad, RoomLine* room);
};

}  // namespace geopipe::cpu
