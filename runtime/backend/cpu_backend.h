// The backend for processors: oneDNN for matrix products, own kernels vectorised for AVX2 for the rest. fp32 and bf16.
#pragma once

#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/cpu_head_attention.h"
#include "runtime/backend/cpu_matmul.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {

class CpuBackend final : public Backend {
 public:
  // `allocator` provides workspace and must outlive the backend. FailedPrecondition: the processor lacks instructions
  // that the kernels are compiled for. Internal: oneDNN does not start. REQUIRES: threads >= 1.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(int threads, Allocator& allocator);

  // The processor's instructions that products run on here, on which their last bits depend.
  static std::string_view ProductInstructions() { return cpu::ProductInstructions(); }

  void RunDry(bool on) override;
  // Number of oneDNN's primitives made so far.
  int64_t primitives() const { return products_->primitives(); }

  absl::Status ZeroBytes(std::byte* data, int64_t bytes) override;
  absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                      const MatrixView& c) override;
  absl::Status Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                         const MatrixView& out) override;
  absl::Status EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out, int64_t first_row,
                             const MatrixView& grad_table) override;
  absl::Status RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps, const MatrixView& y,
                       VectorView<float> inverse_rms) override;
  absl::Status RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                           VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                           const ConstMatrixView& residual, const MatrixView& grad_x,
                           VectorView<float> grad_weight) override;
  absl::Status SumRows(const ConstMatrixView& values, VectorView<float> sum) override;
  absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                    RopeDirection direction) override;
  absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                         const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics) override;
  absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                             const ConstMatrixView& value, const ConstMatrixView& out,
                             VectorView<const float> statistics, const ConstMatrixView& grad_out,
                             const MatrixView& grad_query, const MatrixView& grad_key,
                             const MatrixView& grad_value) override;
  absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) override;
  absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up, const ConstMatrixView& grad_out,
                          const MatrixView& grad_gate, const MatrixView& grad_up) override;
  absl::Status CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                            const MatrixView& gradient, VectorView<double> loss) override;
  absl::Status CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) override;
  absl::Status CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                VectorView<const int32_t> targets, int64_t first_class,
                                VectorView<float> sums) override;
  absl::Status CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                VectorView<const float> sums, VectorView<const int32_t> targets, int64_t first_class,
                                double grad_scale, const MatrixView& gradient, VectorView<double> loss) override;
  absl::Status Axpy(double alpha, VectorView<const float> x, VectorView<float> y) override;
  absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) override;
  absl::Status SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) override;
  absl::Status SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                             VectorView<double> sums) override;
  absl::Status AdamW(const AdamWStep& step) override;

 private:
  CpuBackend(int threads, Allocator& allocator, std::unique_ptr<cpu::MatMulCache> products);

  // Call the kernel as WithElements and WithWidth (cpu_views.h) do, unless the run is dry.
  template <class Kernel>
  absl::Status Launch(DType dtype, const Kernel& kernel) const {
    return dry_ ? absl::OkStatus() : WithElements(dtype, kernel);
  }
  template <class Kernel>
  void Launch(const Kernel& kernel) const {
    if (!dry_) {
      WithWidth(kernel);
    }
  }

  // Calls f(T(), Kernel()) with the type of the elements and the kernel of cpu_head_attention.h for such heads.
  template <class F>
  absl::Status WithHeadKernel(DType dtype, int64_t head_dim, const F& f) const;
  // Room that the threads' kernels compute in.
  cpu::RoomLine* HeadRooms(int64_t lines);
  // Grows workspace_ to at least `floats` floats.
  absl::Status ReserveWorkspace(int64_t floats);
  float* workspace() const { return reinterpret_cast<float*>(workspace_.data()); }

  const int threads_;
  bool dry_ = false;
  Allocator& allocator_;
  std::unique_ptr<cpu::MatMulCache> products_;
  Buffer workspace_;  // of attention's gradient
  std::vector<cpu::RoomLine> head_rooms_;
  std::vector<double> sums_;       // per row or block, added in order
  std::vector<float> block_sums_;  // of norms' weights, likewise
};

}  // namespace geopipe
