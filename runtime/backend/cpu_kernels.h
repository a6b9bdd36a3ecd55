// The cpu backend's own kernels, on plain pointers: everything but matrix products. backend.h says what they compute;
// here rows lie `stride` elements apart, and `threads` is the number of threads to use. Results do not depend on it.
//
// The static functions of a struct are templates of the matrices' element type T, float or BFloat16, and of the width
// of vectors that they are compiled for: each file is compiled once for each, and instantiates its struct at its end.
// Results are the same bits for both.
#pragma once

#include <cstdint>

#include "runtime/backend/adamw_constants.h"
#include "runtime/tensor/bfloat16.h"

namespace geopipe::cpu {

// Eight floats (AVX2 and FMA on x86-64), sixteen (AVX-512 F, BW, DQ and VL).
struct Narrow {};
struct Wide {};

template <class T>
struct Rows {
  T* data;
  int64_t rows;
  int64_t columns;
  int64_t stride;

  T* Row(int64_t i) const { return data + i * stride; }
};

// cpu_norm.cc. Groups of `width` columns are normalised each by itself; inverse_rms [rows, groups].
inline constexpr int64_t kNormBlock = 64;
template <class T, class Width>
struct NormKernels {
  static void RmsNorm(int threads, const Rows<const T>& x, int64_t width, const float* weight, float eps,
                      const Rows<T>& y, float* inverse_rms);
  // residual.data may be null. block_sums [blocks of kNormBlock rows, width]: parts of the gradient of the weight, to
  // be added in order.
  static void RmsNormGrad(int threads, const Rows<const T>& x, int64_t width, const float* weight,
                          const float* inverse_rms, const Rows<const T>& grad_y, const Rows<const T>& residual,
                          const Rows<T>& grad_x, float* block_sums);
};

// cpu_attention.cc
template <class T, class Width>
struct AttentionKernels {
  // sign: 1 rotates, -1 rotates back.
  static void Rope(int threads, const Rows<T>& x, const float* cosine, const float* sine, int64_t sequence,
                   int64_t head_dim, float sign);
  // Takes a block of scores of queries first_query, … and keys first_key, … into the softmax of its rows: turns them
  // into exp(scale * score - the row's greatest so far), zero where the query does not see the key, and keeps that
  // greatest in maxima and the sum so far in totals, both [rows]; totals are 0 before the first block. `sums` [rows,
  // …], what was added up of earlier blocks, is scaled to the new greatest. `starts` [rows] as AttentionShape's, or
  // null.
  static void SoftmaxBlock(const Rows<const float>& scores, const Rows<T>& exponentials, int64_t first_query,
                           int64_t first_key, const int32_t* starts, float scale, float* maxima, float* totals,
                           const Rows<float>& sums);
  // out = sums / totals; statistics = maxima + log(totals).
  static void EndSoftmax(const Rows<const float>& sums, const float* maxima, const float* totals, const Rows<T>& out,
                         float* statistics);
  // products[i] = sum over row i of a * b.
  static void RowProducts(const Rows<const T>& a, const Rows<const T>& b, float* products);
};

// cpu_elementwise.cc
template <class T, class Width>
struct ElementwiseKernels {
  static void SwiGlu(int threads, const Rows<const T>& gate, const Rows<const T>& up, const Rows<T>& out);
  static void SwiGluGrad(int threads, const Rows<const T>& gate, const Rows<const T>& up, const Rows<const T>& grad_out,
                         const Rows<T>& grad_gate, const Rows<T>& grad_up);
  // sum[j] += values[0][j], values[1][j], …
  static void SumRows(int threads, const Rows<const T>& values, float* sum);
  // One sum per run of kSumBlock values (the last may be shorter), to be added in order.
  static void SumOfSquares(int threads, int64_t count, const T* values, double* block_sums);
};

inline constexpr int64_t kSumBlock = 4096;

template <class Width>
struct VectorKernels {
  // Converts float and BFloat16, each to each.
  template <class From, class To>
  static void Convert(int threads, const Rows<const From>& from, const Rows<To>& to);
  static void Axpy(int threads, int64_t count, float alpha, const float* x, float* y);
  // compute_weight may be null.
  static void AdamW(int threads, int64_t count, const AdamWConstants& constants, float* parameter,
                    const float* gradient, float* first_moment, float* second_moment, BFloat16* compute_weight);
};

// cpu_loss.cc
template <class T, class Width>
struct EmbeddingKernels {
  static void Embedding(int threads, const int32_t* tokens, const Rows<const T>& table, int64_t first_row,
                        const Rows<T>& out);
  static void EmbeddingGrad(int threads, const int32_t* tokens, const Rows<const T>& grad_out, int64_t first_row,
                            const Rows<float>& grad_table);
};
// row_losses [logits.rows]; max as many, sums [2, as many]. T: of the gradient.
template <class Width>
struct SlicedLossKernels {
  static void CrossEntropyMax(int threads, const Rows<const float>& logits, float* max);
  static void CrossEntropySums(int threads, const Rows<float>& logits, const float* max, const int32_t* targets,
                               int64_t first_class, float* sums);
};
template <class T, class Width>
struct LossKernels {
  static void CrossEntropy(int threads, const Rows<float>& logits, const int32_t* targets, float grad_scale,
                           const Rows<T>& gradient, double* row_losses);
  static void CrossEntropyGrad(int threads, const Rows<const float>& exponentials, const float* max, const float* sums,
                               const int32_t* targets, int64_t first_class, float grad_scale, const Rows<T>& gradient,
                               double* row_losses);
};

}  // namespace geopipe::cpu
