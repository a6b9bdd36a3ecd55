// A backend that adds up how long each kernel of another takes, where asked to.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/backend/backend.h"

namespace geopipe {

class TimedBackend final : public Backend {
 public:
  struct Kernel {
    std::string name;
    int64_t calls = 0;
    double seconds = 0;
  };

  explicit TimedBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  void Begin() {
    kernels_.clear();
    times_ = true;
  }
  // Returns the kernels since Begin, the longest first.
  std::vector<Kernel> End();

  void RunDry(bool on) override { backend_->RunDry(on); }
  absl::Status ZeroBytes(std::byte* data, int64_t bytes) override {
    return Timed("zero", [&] { return backend_->ZeroBytes(data, bytes); });
  }
  absl::Status MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                      const MatrixView& c) override {
    return Timed(NameOf(product, a, c), [&] { return backend_->MatMul(product, a, b, addend, c); });
  }
  absl::Status Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                         const MatrixView& out) override {
    return Timed("embedding", [&] { return backend_->Embedding(tokens, table, first_row, out); });
  }
  absl::Status EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out, int64_t first_row,
                             const MatrixView& grad_table) override {
    return Timed("embedding gradient",
                 [&] { return backend_->EmbeddingGrad(tokens, grad_out, first_row, grad_table); });
  }
  absl::Status RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps, const MatrixView& y,
                       VectorView<float> inverse_rms) override {
    return Timed("norm", [&] { return backend_->RmsNorm(x, weight, eps, y, inverse_rms); });
  }
  absl::Status RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                           VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                           const ConstMatrixView& residual, const MatrixView& grad_x,
                           VectorView<float> grad_weight) override {
    return Timed("norm gradient",
                 [&] { return backend_->RmsNormGrad(x, weight, inverse_rms, grad_y, residual, grad_x, grad_weight); });
  }
  absl::Status SumRows(const ConstMatrixView& values, VectorView<float> sum) override {
    return Timed("bias gradient", [&] { return backend_->SumRows(values, sum); });
  }
  absl::Status Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                    RopeDirection direction) override {
    return Timed("rope", [&] { return backend_->Rope(x, table, sequence, head_dim, direction); });
  }
  absl::Status Attention(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                         const ConstMatrixView& value, const MatrixView& out, VectorView<float> statistics) override {
    return Timed("attention", [&] { return backend_->Attention(shape, query, key, value, out, statistics); });
  }
  absl::Status AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                             const ConstMatrixView& value, const ConstMatrixView& out,
                             VectorView<const float> statistics, const ConstMatrixView& grad_out,
                             const MatrixView& grad_query, const MatrixView& grad_key,
                             const MatrixView& grad_value) override {
    return Timed("attention gradient", [&] {
      return backend_->AttentionGrad(shape, query, key, value, out, statistics, grad_out, grad_query, grad_key,
                                     grad_value);
    });
  }
  absl::Status SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) override {
    return Timed("swiglu", [&] { return backend_->SwiGlu(gate, up, out); });
  }
  absl::Status SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up, const ConstMatrixView& grad_out,
                          const MatrixView& grad_gate, const MatrixView& grad_up) override {
    return Timed("swiglu gradient", [&] { return backend_->SwiGluGrad(gate, up, grad_out, grad_gate, grad_up); });
  }
  absl::Status CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                            const MatrixView& gradient, VectorView<double> loss) override {
    return Timed("loss", [&] { return backend_->CrossEntropy(logits, targets, grad_scale, gradient, loss); });
  }
  absl::Status CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) override {
    return Timed("loss", [&] { return backend_->CrossEntropyMax(logits, max); });
  }
  absl::Status CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                VectorView<const int32_t> targets, int64_t first_class,
                                VectorView<float> sums) override {
    return Timed("loss", [&] { return backend_->CrossEntropySums(logits, max, targets, first_class, sums); });
  }
  absl::Status CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                VectorView<const float> sums, VectorView<const int32_t> targets, int64_t first_class,
                                double grad_scale, const MatrixView& gradient, VectorView<double> loss) override {
    return Timed("loss", [&] {
      return backend_->CrossEntropyGrad(exponentials, max, sums, targets, first_class, grad_scale, gradient, loss);
    });
  }
  absl::Status Axpy(double alpha, VectorView<const float> x, VectorView<float> y) override {
    return Timed("axpy", [&] { return backend_->Axpy(alpha, x, y); });
  }
  absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) override {
    return Timed("convert", [&] { return backend_->Convert(from, to); });
  }
  absl::Status SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) override {
    return Timed("sum of squares", [&] { return backend_->SumOfSquares(values, sum); });
  }
  absl::Status SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                             VectorView<double> sums) override {
    return Timed("sums of squares", [&] { return backend_->SumsOfSquares(values, runs, sums); });
  }
  absl::Status AdamW(const AdamWStep& step) override {
    return Timed("adamw", [&] { return backend_->AdamW(step); });
  }

 private:
  static std::string NameOf(Product product, const ConstMatrixView& a, const MatrixView& c);

  template <class Work>
  std::invoke_result_t<Work> Timed(std::string_view name, const Work& work) {
    if (!times_) {
      return work();
    }
    const auto begun = std::chrono::steady_clock::now();
    auto result = work();
    Kernel& kernel = kernels_[std::string(name)];
    ++kernel.calls;
    kernel.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return result;
  }

  std::unique_ptr<Backend> backend_;
  std::map<std::string, Kernel> kernels_;
  bool times_ = false;
};

}  // namespace geopipe
