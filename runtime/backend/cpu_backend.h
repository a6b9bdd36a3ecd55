// The backend for processors: oneDNN for matrix products, own kernels vectorised for AVX2 for the rest. fp32.
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

  absl::Status Zero(std::span<float> values) override;
  absl::Status Copy(const ConstMatrixView& from, const MatrixView& to) override;
  absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const MatrixView& c,
                      bool accumulate) override;
  absl::Status Embedding(std::span<const int32_t> tokens, const ConstMatrixView& table, const MatrixView& out) override;
  absl::Status EmbeddingGrad(std::span<const int32_t> tokens, const ConstMatrixView& grad_out,
                             const MatrixView& grad_table) override;
  absl::Status RmsNorm(const ConstMatrixView& x, std::span<const float> weight, double eps, const MatrixView& y,
                       std::span<float> inverse_rms) override;
  absl::Status RmsNormInputGrad(const ConstMatrixView& x, std::span<const float> weight,
                                std::span<const float> inverse_rms, const ConstMatrixView& grad_y,
                                const ConstMatrixView& residual, const MatrixView& grad_x) override;
  absl::Status RmsNormWeightGrad(const ConstMatrixView& x, std::span<const float> inverse_rms,
                                 const ConstMatrixView& grad_y, std::span<float> grad_weight) override;
  absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                    RopeDirection direction) override;
  absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                         const ConstMatrixView& v, const MatrixView& probabilities, const MatrixView& out) override;
  absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                             const ConstMatrixView& v, const ConstMatrixView& probabilities,
                             const ConstMatrixView& grad_out, const MatrixView& grad_q, const MatrixView& grad_k,
                             const MatrixView& grad_v) override;
  absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) override;
  absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up, const ConstMatrixView& grad_out,
                          const MatrixView& grad_gate, const MatrixView& grad_up) override;
  absl::StatusOr<double> CrossEntropy(const MatrixView& logits, std::span<const int32_t> targets) override;
  absl::Status CrossEntropyGrad(const MatrixView& softmax, std::span<const int32_t> targets,
                                double grad_scale) override;
  absl::Status Axpy(double alpha, std::span<const float> x, std::span<float> y) override;
  absl::StatusOr<double> SumOfSquares(std::span<const float> values) override;
  absl::Status AdamW(const AdamWStep& step) override;

 private:
  CpuBackend(int threads, Allocator& allocator, std::unique_ptr<cpu::MatMulCache> products);

  // The gradient of one sample's kv head and of the query heads that share it. Views are of that sample and head(s).
  struct HeadGroup;
  absl::Status AttentionGroupGrad(const AttentionShape& shape, const HeadGroup& group);
  // Makes workspace_ hold at least so many floats.
  absl::Status ReserveWorkspace(int64_t floats);

  const int threads_;
  Allocator& allocator_;
  std::unique_ptr<cpu::MatMulCache> products_;
  Buffer workspace_;          // of AttentionGrad
  std::vector<double> sums_;  // per row or block, added in order
};

}  // namespace geopipe
