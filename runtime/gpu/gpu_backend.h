// The backend for GPUs: the port's kernels and products on the device's compute queue. fp32 and bf16. The results are a
// function of shapes and values, for one library and kind of device.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_attention.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/gpu/gpu_products.h"

namespace geopipe {

// Its calls are made by the thread that enqueues the device's work. Their errors are the device's, and the allocator's
// where a call needs more workspace than any before.
class GpuBackend final : public Backend {
 public:
  // `allocator`, of the device's memory, provides workspace; both outlive the backend.
  GpuBackend(GpuDevice& device, Allocator& allocator);

  void RunDry(bool on) override;
  // Number of plans made so far: none after a dry run.
  int64_t plans_built() const { return products_.plans_built(); }

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
  const GpKernels& kernels() const { return device_.port().kernels; }
  // Enqueues a kernel, unless the run is dry.
  template <class Args>
  absl::Status Launch(int32_t (*kernel)(const Args* args, void* stream), const Args& args) {
    return dry_ ? absl::OkStatus() : device_.Launch(kernel, args, Queue::kCompute);
  }
  // Workspace for a kernel's own partial results.
  template <class T>
  absl::StatusOr<T*> Partials(int64_t bytes);

  // Products with a row for bf16 results, which the port does not have: the sum is made in fp32, and rounded.
  absl::Status MatMulThroughFp32(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                 const Addend& addend, const MatrixView& c);
  // Products without a sum, which the port does not have either.
  absl::Status MatMulOfNothing(DType operands, const Addend& addend, const MatrixView& c);
  absl::Status SquareRuns(DType dtype, const void* values, const std::vector<GpRun>& runs, VectorView<double> sums);

  GpuDevice& device_;
  bool dry_ = false;
  GpuProducts products_;
  GpuWorkspace workspace_;  // of one call at a time
  GpuWorkspace zeros_;      // operands of MatMulOfNothing
  GpuAttention attention_;
};

}  // namespace geopipe
