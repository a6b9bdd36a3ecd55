// The backend for processors: oneDNN for matrix products, own kernels vectorised for AVX2 for the rest. fp32 and bf16.
#pragma once

#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/cpu_matmul.h"

namespace geopipe {

class CpuBackend final : public Backend {
 public:
  // `allocator` provides workspace and must outlive the backend. FailedPrecondition: the processor lacks instructions
  // that the kernels are compiled for. Internal: oneDNN does not start. REQUIRES: threads >= 1.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(int threads, Allocator& allocator);

  absl::Status ZeroBytes(std::byte* data, int64_t bytes) override;
  absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const MatrixView& c,
                      bool accumulate) override;
  absl::Status Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                         const MatrixView& out) override;
  absl::Status EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out, int64_t first_row,
                             const MatrixView& grad_table) override;
  absl::Status RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps, const MatrixView& y,
                       VectorView<float> inverse_rms) override;
  absl::Status RmsNormInputGrad(const ConstMatrixView& x, VectorView<const float> weight,
                                VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                                const ConstMatrixView& residual, const MatrixView& grad_x) override;
  absl::Status RmsNormWeightGrad(const ConstMatrixView& x, VectorView<const float> inverse_rms,
                                 const ConstMatrixView& grad_y, VectorView<float> grad_weight) override;
  absl::Status RepeatRow(VectorView<const float> row, const MatrixView& y, bool accumulate) override;
  absl::Status SumRows(const ConstMatrixView& values, VectorView<float> sum) override;
  absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                    RopeDirection direction) override;
  absl::StatusOr<AttentionState> Attention(const AttentionShape& shape, Tensor query, Tensor key, Tensor value,
                                           const MatrixView& out, MemoryCategory category) override;
  absl::StatusOr<AttentionGradients> AttentionGrad(const AttentionShape& shape, AttentionState state,
                                                   const ConstMatrixView& out, Tensor grad_out) override;
  absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) override;
  absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up, const ConstMatrixView& grad_out,
                          const MatrixView& grad_gate, const MatrixView& grad_up) override;
  absl::Status CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets,
                            VectorView<double> loss) override;
  absl::Status CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) override;
  absl::Status CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                VectorView<const int32_t> targets, int64_t first_class,
                                VectorView<float> sums) override;
  absl::Status CrossEntropyLoss(const MatrixView& exponentials, VectorView<const float> max,
                                VectorView<const float> sums, VectorView<double> loss) override;
  absl::Status CrossEntropyGrad(const MatrixView& softmax, VectorView<const int32_t> targets, int64_t first_class,
                                double grad_scale) override;
  absl::Status Axpy(double alpha, VectorView<const float> x, VectorView<float> y) override;
  absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) override;
  absl::Status SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) override;
  absl::Status AdamW(const AdamWStep& step) override;

  // Attention on views, all of one type, which the two above allocate. Elements above the diagonal of a probability
  // matrix [b*heads*s, s] are unspecified. grad_q may be grad_out, grad_k may be k, grad_v may be v.
  absl::Status AttentionForward(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                                const ConstMatrixView& v, const MatrixView& probabilities, const MatrixView& out);
  absl::Status AttentionBackward(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                                 const ConstMatrixView& v, const ConstMatrixView& probabilities,
                                 const ConstMatrixView& grad_out, const MatrixView& grad_q, const MatrixView& grad_k,
                                 const MatrixView& grad_v);

 private:
  CpuBackend(int threads, Allocator& allocator, std::unique_ptr<cpu::MatMulCache> products);

  // Computes the gradient of one sample's kv head and of the query heads that share it. Views are of that sample and
  // head(s).
  struct HeadGroup;
  absl::Status AttentionGroupGrad(const AttentionShape& shape, const HeadGroup& group);
  // Grows workspace_ to at least `floats` floats.
  absl::Status ReserveWorkspace(int64_t floats);
  float* workspace() const { return reinterpret_cast<float*>(workspace_.data()); }

  const int threads_;
  Allocator& allocator_;
  std::unique_ptr<cpu::MatMulCache> products_;
  Buffer workspace_;          // of attention
  std::vector<double> sums_;  // per row or block, added in order
};

}  // namespace geopipe
