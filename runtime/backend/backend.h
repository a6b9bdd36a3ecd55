// The kernels of the training engine. The model's code is written against this interface alone; the cpu backend
// implements it with oneDNN and vectorised loops, other devices with theirs.
//
// Views point at memory of the backend's device and carry their element type. Vectors of statistics, norm weights,
// gradients and optimizer states are always fp32. Every kernel's result is a function of its arguments alone: reduction
// orders are fixed and depend neither on alignment nor on what ran before. One thread at a time may use a backend.
//
// Errors: Unimplemented for an element type that the backend does not compute in, ResourceExhausted when workspace
// memory does not fit, Internal when the device's library fails. Wrong shapes are bugs (GP_CHECK).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "optimizer/model/run_options.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// A row-major matrix in somebody else's memory; `stride` is the distance between rows, in elements.
struct MatrixView {
  std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  DType dtype = DType::kFp32;
};

struct ConstMatrixView {
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  DType dtype = DType::kFp32;

  ConstMatrixView() = default;
  // Implicit: whatever may be written may be read.
  ConstMatrixView(const MatrixView& view)
      : data(view.data), rows(view.rows), columns(view.columns), stride(view.stride), dtype(view.dtype) {}
};

// The tensor as a matrix: its last extent is the columns, all others together are the rows.
MatrixView ViewOf(const Tensor& tensor);

// How the operands of C = A * B are stored. kNN: A [m, k], B [k, n]; kNT: A [m, k], B [n, k]; kTN: A [k, m], B [k, n].
enum class Product : uint8_t { kNN, kNT, kTN };

struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; head i uses the keys and values of kv head i / (heads / kv_heads)
  int64_t head_dim = 0;
};

enum class RopeDirection : uint8_t { kForward, kBackward };

// Rotary position embedding (arXiv 2104.09864) in Hugging Face's half-rotation layout: [sequence, head_dim / 2] each.
struct RopeTable {
  std::span<const float> cosine;
  std::span<const float> sine;
};

// One AdamW update (arXiv 1711.05101) in PyTorch's order of operations; all spans have the same size.
//   g = grad_scale * grad;  p *= 1 - lr * weight_decay;  m = b1 * m + (1 - b1) * g;  v = b2 * v + (1 - b2) * g * g;
//   p -= lr / (1 - b1^step) * m / (sqrt(v) / sqrt(1 - b2^step) + eps)
struct AdamWStep {
  std::span<float> parameter;
  std::span<const float> gradient;
  std::span<float> first_moment;
  std::span<float> second_moment;
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double grad_scale = 1;
  int64_t step = 1;  // from 1
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::Status Zero(std::span<float> values) = 0;
  virtual absl::Status Copy(const ConstMatrixView& from, const MatrixView& to) = 0;

  // c = a * b, or c += a * b. c overlaps neither operand.
  virtual absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const MatrixView& c,
                              bool accumulate) = 0;

  // out[i] = table[tokens[i]]. REQUIRES: 0 <= tokens[i] < table.rows.
  virtual absl::Status Embedding(std::span<const int32_t> tokens, const ConstMatrixView& table,
                                 const MatrixView& out) = 0;
  // grad_table[tokens[i]] += grad_out[i], in order of i.
  virtual absl::Status EmbeddingGrad(std::span<const int32_t> tokens, const ConstMatrixView& grad_out,
                                     const MatrixView& grad_table) = 0;

  // y = x * r * weight with r = 1 / sqrt(mean(x^2) + eps) per row (arXiv 1910.07467), which `inverse_rms` [rows] keeps.
  virtual absl::Status RmsNorm(const ConstMatrixView& x, std::span<const float> weight, double eps, const MatrixView& y,
                               std::span<float> inverse_rms) = 0;
  // grad_x = gradient through the norm, plus `residual` unless that view is empty. grad_x may be x or residual itself.
  virtual absl::Status RmsNormInputGrad(const ConstMatrixView& x, std::span<const float> weight,
                                        std::span<const float> inverse_rms, const ConstMatrixView& grad_y,
                                        const ConstMatrixView& residual, const MatrixView& grad_x) = 0;
  // grad_weight += sum over rows of grad_y * x * inverse_rms.
  virtual absl::Status RmsNormWeightGrad(const ConstMatrixView& x, std::span<const float> inverse_rms,
                                         const ConstMatrixView& grad_y, std::span<float> grad_weight) = 0;

  // Rotates each head of x [b * sequence, heads * head_dim] in place by its position; kBackward rotates back, which is
  // the gradient. Row i stands at position i mod sequence.
  virtual absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                            RopeDirection direction) = 0;

  // Causal attention. q [b*s, heads*d], k and v [b*s, kv_heads*d], out like q; probabilities [b*heads*s, s] are kept
  // for the backward. What lies above the diagonal of a probability matrix is unspecified.
  virtual absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                                 const ConstMatrixView& v, const MatrixView& probabilities, const MatrixView& out) = 0;
  // Gradients of q, k and v. grad_q may be grad_out itself, grad_k may be k, grad_v may be v.
  virtual absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                                     const ConstMatrixView& v, const ConstMatrixView& probabilities,
                                     const ConstMatrixView& grad_out, const MatrixView& grad_q,
                                     const MatrixView& grad_k, const MatrixView& grad_v) = 0;

  // out = silu(gate) * up (arXiv 2002.05202).
  virtual absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) = 0;
  // grad_gate may be gate itself, grad_up may be up.
  virtual absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up,
                                  const ConstMatrixView& grad_out, const MatrixView& grad_gate,
                                  const MatrixView& grad_up) = 0;

  // Softmax cross-entropy. Replaces the fp32 logits [rows, classes] by their softmax and returns the sum over rows of
  // -log softmax(logits)[target], in row order in fp64. REQUIRES: 0 <= targets[i] < classes.
  virtual absl::StatusOr<double> CrossEntropy(const MatrixView& logits, std::span<const int32_t> targets) = 0;
  // Replaces the softmax by the gradient, with respect to the logits, of grad_scale times that sum.
  virtual absl::Status CrossEntropyGrad(const MatrixView& softmax, std::span<const int32_t> targets,
                                        double grad_scale) = 0;

  // y += alpha * x.
  virtual absl::Status Axpy(double alpha, std::span<const float> x, std::span<float> y) = 0;
  // In fp64.
  virtual absl::StatusOr<double> SumOfSquares(std::span<const float> values) = 0;
  virtual absl::Status AdamW(const AdamWStep& step) = 0;
};

// `allocator` provides workspace and outlives the backend; `threads` of the processor are the cpu backend's. Errors:
// InvalidArgument when the kind is not built, those of the backend's start. REQUIRES: the kind computes.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(BackendKind kind, int threads, Allocator& allocator);

// OMP_NUM_THREADS, which the worker's share of the processors arrives in; 1 when unset. InvalidArgument when it is not
// a number from 1 to 1024.
absl::StatusOr<int> ThreadsFromEnvironment();

}  // namespace geopipe
