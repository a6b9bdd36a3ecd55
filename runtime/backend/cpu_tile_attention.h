// Causal attention of one head in bf16 by AMX tiles: what oneDNN's products would pack for every block is packed once,
// and gradients of scores are made where the next product wants them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/tensor/bfloat16.h"

namespace geopipe::cpu {

// Built on x86-64 alone. REQUIRES: AmxWorks(), and Fits() the head. Any number of threads, each with a room of its own.
struct TileAttention {
  struct Head {
    Rows<const BFloat16> query;  // [s, d], as the others
    Rows<const BFloat16> key;
    Rows<const BFloat16> value;
    const int32_t* starts;  // [s] as AttentionShape's, or null
    float scale;            // of scores
  };

  // True for whole tiles of a size that the caches hold.
  static constexpr bool Fits(int64_t head_dim) { return head_dim % 32 == 0 && head_dim <= 256; }

  // Bytes that the functions compute in, aligned to 64; they grow with the head's size alone.
  static int64_t RoomBytes(int64_t head_dim);

  // statistics [s]: log of the sum of exp(scale * score).
  static void Forward(const Head& head, const Rows<BFloat16>& out, float* statistics, std::byte* room);

  // Sets grad_query [s, d], and adds to those of key and value [s, d], whose rows lie together.
  static void Backward(const Head& head, const Rows<const BFloat16>& out, const float* statistics,
                       const Rows<const BFloat16>& grad_out, const Rows<BFloat16>& grad_query, float* grad_key,
                       float* grad_value, std::byte* room);
};

}  // namespace geopipe::cpu
