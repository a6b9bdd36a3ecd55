// The cpu backend's own kernels, on plain pointers: everything but matrix products. backend.h says what they compute;
// here rows lie `stride` elements apart, and `threads` is the number of threads to use. Results do not depend on it.
#pragma once

#include <cstdint>

namespace geopipe::cpu {

struct Rows {
  float* data;
  int64_t rows;
  int64_t columns;
  int64_t stride;

  float* Row(int64_t i) const { return data + i * stride; }
};

struct ConstRows {
  const float* data;
  int64_t rows;
  int64_t columns;
  int64_t stride;

  const float* Row(int64_t i) const { return data + i * stride; }
};

// cpu_norm.cc
void RmsNorm(int threads, const ConstRows& x, const float* weight, float eps, const Rows& y, float* inverse_rms);
// residual.data may be null.
void RmsNormInputGrad(int threads, const ConstRows& x, const float* weight, const float* inverse_rms,
                      const ConstRows& grad_y, const ConstRows& residual, const Rows& grad_x);
void RmsNormWeightGrad(int threads, const ConstRows& x, const float* inverse_rms, const ConstRows& grad_y,
                       float* grad_weight);

// cpu_attention.cc
// sign: 1 rotates, -1 rotates back.
void Rope(int threads, const Rows& x, const float* cosine, const float* sine, int64_t sequence, int64_t head_dim,
          float sign);
// Rows `first_row`, first_row + 1, … of a score matrix, in place: row i becomes softmax(scale * its first i + 1
// columns), zero in the others.
void CausalSoftmax(const Rows& scores, int64_t first_row, float scale);
// The gradient through CausalSoftmax: grad = scale * p * (grad - sum(p * grad)) for the first i + 1 columns, zero in
// the others.
void CausalSoftmaxGrad(const ConstRows& probabilities, const Rows& grad, int64_t first_row, float scale);

// cpu_elementwise.cc
void SwiGlu(int threads, const ConstRows& gate, const ConstRows& up, const Rows& out);
void SwiGluGrad(int threads, const ConstRows& gate, const ConstRows& up, const ConstRows& grad_out,
                const Rows& grad_gate, const Rows& grad_up);
void Axpy(int threads, int64_t count, float alpha, const float* x, float* y);
// One sum per run of kSumBlock values (the last may be shorter), to be added in order.
inline constexpr int64_t kSumBlock = 4096;
void SumOfSquares(int threads, int64_t count, const float* values, double* block_sums);

// Computed in fp64 and rounded once, as PyTorch does.
struct AdamWConstants {
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_bias_correction2;
  float eps;
  float step_size;  // lr / bias_correction1
};
void AdamW(int threads, int64_t count, const AdamWConstants& constants, float* parameter, const float* gradient,
           float* first_moment, float* second_moment);

// cpu_loss.cc
// row_losses [logits.rows].
void CrossEntropy(int threads, const Rows& logits, const int32_t* targets, double* row_losses);
void CrossEntropyGrad(int threads, const Rows& softmax, const int32_t* targets, float grad_scale);
void Embedding(int threads, const int32_t* tokens, const ConstRows& table, const Rows& out);
void EmbeddingGrad(int threads, const int32_t* tokens, const ConstRows& grad_out, const Rows& grad_table);

}  // namespace geopipe::cpu
