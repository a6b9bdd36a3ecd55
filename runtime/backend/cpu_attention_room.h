// The blocks of scores that attention computes in.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/cpu_views.h"

namespace geopipe::cpu {

// Rows and columns of a block: large enough for efficient products, small enough for the second cache.
inline constexpr int64_t kQueries = 64;
inline constexpr int64_t kKeys = 512;

// Blocks that attention computes in: of one head, and of no size that grows with the sequence.
struct AttentionRoom {
  AttentionRoom(DType type, int64_t head_dim)
      : dtype(type),
        head(head_dim),
        memory(static_cast<size_t>(4 * kQueries * kKeys + kQueries * (head_dim + 3))),
        maxima(memory.data() + 4 * kQueries * kKeys + kQueries * head_dim),
        totals(maxima + kQueries),
        products(totals + kQueries) {}

  // The four blocks of a size; fp32 exponentials take the place of their scores, and gradients that of their operand.
  MatrixView Scores(int64_t rows, int64_t keys) { return Fp32View(memory.data(), rows, keys); }
  MatrixView ScoreGradient(int64_t rows, int64_t keys) { return Fp32View(Block(1), rows, keys); }
  MatrixView Exponentials(int64_t rows, int64_t keys) { return Typed(0, 2, rows, keys); }
  MatrixView RoundedGradient(int64_t rows, int64_t keys) { return Typed(1, 3, rows, keys); }
  MatrixView Sums(int64_t rows) { return Fp32View(Block(4), rows, head); }

  float* Block(int64_t i) { return memory.data() + i * kQueries * kKeys; }
  MatrixView Typed(int64_t if_fp32, int64_t otherwise, int64_t rows, int64_t keys) {
    MatrixView view = Fp32View(Block(dtype == DType::kFp32 ? if_fp32 : otherwise), rows, keys);
    view.dtype = dtype;
    return view;
  }

  DType dtype;
  int64_t head;
  std::vector<float> memory;
  float* maxima;    // [kQueries], as the others
  float* totals;    // of exponentials
  float* products;  // of outputs and their gradients
};

}  // namespace geopipe::cpu
