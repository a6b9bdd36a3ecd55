// The kernels of the training engine. The model's code is written against this interface alone; the cpu backend
// implements it with oneDNN and vectorised loops, other devices with theirs.
//
// A backend enqueues its kernels on the device of its allocator; results are there when the enqueued work is done
// (runtime/tensor/device.h). Views point at that device's memory, which the host does not touch. Every kernel's result
// is a function of its arguments alone: reduction orders are fixed and depend neither on alignment nor on earlier
// calls. One thread at a time may use a backend.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
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
// Part of a matrix: `count` rows, or columns, from `first` on.
template <class View>
View RowsOf(View matrix, int64_t first, int64_t count) {
  matrix.data += first * matrix.stride * ByteSize(matrix.dtype);
  matrix.rows = count;
  return matrix;
}
template <class View>
View ColumnsOf(View matrix, int64_t first, int64_t count) {
  matrix.data += first * ByteSize(matrix.dtype);
  matrix.columns = count;
  return matrix;
}

namespace internal {
template <class T>
inline constexpr DType kDTypeOf = T::kNoSuchType;
template <>
inline constexpr DType kDTypeOf<float> = DType::kFp32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFp64;
}  // namespace internal

// Consecutive elements in somebody else's memory.
template <class T>
struct VectorView {
  T* data = nullptr;
  int64_t size = 0;

  VectorView() = default;
  // Implicit: all elements of a tensor (REQUIRES: of type T), or of a range in the host's memory.
  VectorView(const Tensor& tensor) : data(reinterpret_cast<T*>(tensor.address())), size(tensor.elements()) {
    constexpr DType kExpected = internal::kDTypeOf<std::remove_const_t<T>>;
    GP_CHECK(tensor.dtype() == kExpected, "a vector of {} where {} is needed", DTypeName(tensor.dtype()),
             DTypeName(kExpected));
  }
  template <std::ranges::contiguous_range Range>
  VectorView(Range& range) : data(std::ranges::data(range)), size(static_cast<int64_t>(std::ranges::size(range))) {}
  template <std::ranges::borrowed_range View>
  VectorView(const View& view) : data(std::ranges::data(view)), size(static_cast<int64_t>(std::ranges::size(view))) {}
  VectorView(T* first, int64_t count) : data(first), size(count) {}
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_same_v<const U, T>) VectorView(const VectorView<U>& other)
      : data(other.data), size(other.size) {}

  // REQUIRES: 0 <= i < size.
  VectorView At(int64_t i) const { return {data + i, 1}; }
};

// Storage of the operands of C = A * B. kNN: A [m, k], B [k, n]; kNT: A [m, k], B [n, k]; kTN: A [k, m], B [k, n].
enum class Product : uint8_t { kNN, kNT, kTN };

// Summands of a product, added before it is rounded; parts without data add nothing.
struct Addend {
  ConstMatrixView matrix = {};       // of the result's shape and type, and maybe its memory
  VectorView<const float> row = {};  // to each row

  static Addend None() { return {}; }
};

// Sizes of causal attention. Where `starts` [batch * sequence] is given, the query at position i of a sample sees the
// keys from position starts[i] on alone; REQUIRES: it decreases nowhere in a sample, and 0 <= starts[i] <= i.
struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; head i uses the keys and values of kv head i / (heads / kv_heads)
  int64_t head_dim = 0;
  VectorView<const int32_t> starts = {};
};

enum class RopeDirection : uint8_t { kForward, kBackward };

// Rotary position embedding (arXiv 2104.09864) in Hugging Face's half-rotation layout: [sequence, head_dim / 2] each.
struct RopeTable {
  VectorView<const float> cosine;
  VectorView<const float> sine;
};

// One AdamW update (arXiv 1711.05101) in PyTorch's order of operations; all vectors have the same size.
//   g = grad_scale * grad;  p *= 1 - lr * weight_decay;  m = b1 * m + (1 - b1) * g;  v = b2 * v + (1 - b2) * g * g;
//   p -= lr / (1 - b1^step) * m / (sqrt(v) / sqrt(1 - b2^step) + eps)
struct AdamWStep {
  VectorView<float> parameter = {};
  VectorView<const float> gradient = {};
  VectorView<float> first_moment = {};
  VectorView<float> second_moment = {};
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double grad_scale = 1;
  int64_t step = 1;                          // from 1
  VectorView<BFloat16> compute_weight = {};  // unless empty, becomes the new parameter, rounded
};

// GP_CHECK operands, for all backends: matrices of one shape; columns in whole groups of `width`, with a statistic for
// each in each row; those of attention.
void CheckSameShape(const ConstMatrixView& a, const ConstMatrixView& b);
void CheckGroups(const ConstMatrixView& x, int64_t width, int64_t statistics);
void CheckAttention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                    const ConstMatrixView& value, const ConstMatrixView& out, int64_t statistics);

class Backend {
 public:
  virtual ~Backend() = default;

  // While on, kernels check their arguments and make what they keep between calls (primitives, workspace), but compute
  // nothing.
  virtual void RunDry(bool on) = 0;

  // Sets the bytes to 0, and with them elements of any type to zero.
  virtual absl::Status ZeroBytes(std::byte* data, int64_t bytes) = 0;
  absl::Status Zero(VectorView<float> values) {
    return ZeroBytes(reinterpret_cast<std::byte*>(values.data), values.size * ByteSize(DType::kFp32));
  }

  // c = a * b + addend. a and b are both fp32 or both bf16; c is fp32, or bf16 as they are. Products are added in fp32,
  // and the sum is rounded once. A device's bf16 instructions may take numbers below 2^-126 for zero. c overlaps
  // neither operand. Without a sum (an extent of 0) a product is zero.
  virtual absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                              const MatrixView& c) = 0;

  // Sets out[i] = table[tokens[i] - first_row], or zero where the table, which holds rows [first_row, first_row +
  // table.rows) of the vocabulary's, has no such row.
  virtual absl::Status Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                                 const MatrixView& out) = 0;
  // grad_table[tokens[i] - first_row] += grad_out[i], in order of i, of the tokens that have such a row. grad_table is
  // fp32.
  virtual absl::Status EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out,
                                     int64_t first_row, const MatrixView& grad_table) = 0;

  // y = x * r * weight with r = 1 / sqrt(mean(x^2) + eps) (arXiv 1910.07467) of each group of weight.size columns,
  // which `inverse_rms` [rows, groups] keeps.
  virtual absl::Status RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps,
                               const MatrixView& y, VectorView<float> inverse_rms) = 0;
  // grad_x = gradient through the norm, plus `residual` unless that view is empty; grad_x may be x, grad_y or residual
  // itself. grad_weight += sum over rows and groups of grad_y * x * inverse_rms.
  virtual absl::Status RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                                   VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                                   const ConstMatrixView& residual, const MatrixView& grad_x,
                                   VectorView<float> grad_weight) = 0;

  // sum += the rows of `values`, in their order.
  virtual absl::Status SumRows(const ConstMatrixView& values, VectorView<float> sum) = 0;

  // Rotates each head of x [b * sequence, heads * head_dim] in place by its position; kBackward rotates back, which is
  // the gradient. Row i stands at position i mod sequence.
  virtual absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                            RopeDirection direction) = 0;

  // Causal attention: `out` [b*s, heads*d] of query (as out), key and value [b*s, kv_heads*d], all of one type.
  // `statistics` [b*s*heads] is what AttentionGrad needs besides, the backend's own. Probabilities, and in
  // AttentionGrad the gradients of scores, are rounded to the matrices' type before a product, and never lie in memory
  // as a whole.
  virtual absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                                 const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics) = 0;
  // The gradients of query, key and value, which share no memory with the operands. Those of a key and a value are
  // added over the heads that share them in fp32.
  virtual absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query,
                                     const ConstMatrixView& key, const ConstMatrixView& value,
                                     const ConstMatrixView& out, VectorView<const float> statistics,
                                     const ConstMatrixView& grad_out, const MatrixView& grad_query,
                                     const MatrixView& grad_key, const MatrixView& grad_value) = 0;

  // out = silu(gate) * up (arXiv 2002.05202).
  virtual absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) = 0;
  // grad_gate may be gate itself, grad_up may be up.
  virtual absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up,
                                  const ConstMatrixView& grad_out, const MatrixView& grad_gate,
                                  const MatrixView& grad_up) = 0;

  // Softmax cross-entropy of fp32 logits [rows, classes], which are undefined afterwards. Adds the sum over rows of
  // -log softmax(logits)[target] to `loss` [1], in row order in fp64, and sets `gradient`, in its own type, to
  // grad_scale times the sum's gradient with respect to the logits, whose memory it may be; an empty view: no gradient
  // is wanted. REQUIRES: 0 <= targets[i] < classes.
  virtual absl::Status CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                                    const MatrixView& gradient, VectorView<double> loss) = 0;
  // The same with the classes divided among several (arXiv 1909.08053): each has the logits of its slice, which begins
  // at first_class, all have all targets. Each of the three does its part between two reductions over the slices, which
  // are the caller's. With one slice, results are CrossEntropy's bits.
  //   CrossEntropyMax: max [rows] = the row's greatest logit. Then: the maximum over the slices.
  virtual absl::Status CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) = 0;
  //   CrossEntropySums: logits become exp(logit - max); sums [2, rows] = their sum, and the target's logit or, where it
  //   is in another slice, 0. Then: the sums over the slices.
  virtual absl::Status CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                        VectorView<const int32_t> targets, int64_t first_class,
                                        VectorView<float> sums) = 0;
  //   CrossEntropyGrad: the slice's gradient, as above, and the loss, on every slice.
  virtual absl::Status CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                        VectorView<const float> sums, VectorView<const int32_t> targets,
                                        int64_t first_class, double grad_scale, const MatrixView& gradient,
                                        VectorView<double> loss) = 0;

  // y += alpha * x.
  virtual absl::Status Axpy(double alpha, VectorView<const float> x, VectorView<float> y) = 0;
  // to = from, in to's type, which may be from's or another.
  virtual absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) = 0;
  // Sets sum [1] to the sum of value^2, in fp64. REQUIRES: the rows are contiguous (stride == columns).
  virtual absl::Status SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) = 0;
  // Sets sums [runs] to the same of each run [begin, end) of a vector; of an empty one to 0.
  using Run = std::pair<int64_t, int64_t>;
  virtual absl::Status SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                                     VectorView<double> sums) = 0;
  virtual absl::Status AdamW(const AdamWStep& step) = 0;
};

// A device and the libraries that a backend computes with there, on which the last bits of results depend; all of them
// are given for a GPU.
struct DeviceVersions {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int32_t multiprocessors = 0;
  std::string driver;
  std::string runtime;
  std::string cublas_lt;
  std::string kernels;  // a hash of our own
};

// Reads OMP_NUM_THREADS, by which the worker is told its share of the processors; 1 when unset. InvalidArgument when it
// is not a number from 1 to 1024.
absl::StatusOr<int> ThreadsFromEnvironment();

}  // namespace geopipe
