#include "runtime/backend/cpu_backend.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {
namespace {

template <typename A, typename B>
void CheckSameShape(const A& a, const B& b) {
  GP_CHECK(a.rows == b.rows && a.columns == b.columns, "[{}, {}] against [{}, {}]", a.rows, a.columns, b.rows,
           b.columns);
}

}  // namespace

CpuBackend::CpuBackend(int threads, Allocator& allocator, std::unique_ptr<cpu::MatMulCache> products)
    : threads_(threads), allocator_(allocator), products_(std::move(products)) {}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(int threads, Allocator& allocator) {
  GP_CHECK(threads >= 1, "{} threads", threads);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
    return absl::FailedPreconditionError(
        "this processor has no AVX2 and FMA instructions, which the cpu backend is compiled for; run the worker on one "
        "that has (Intel since 2013, AMD since 2015)");
  }
#endif
  GP_ASSIGN_OR_RETURN(std::unique_ptr<cpu::MatMulCache> products, cpu::MatMulCache::Create(threads));
  return std::unique_ptr<CpuBackend>(new CpuBackend(threads, allocator, std::move(products)));
}

absl::Status CpuBackend::Zero(VectorView<float> values) {
  std::memset(values.data, 0, static_cast<size_t>(values.size) * sizeof(float));
  return absl::OkStatus();
}

absl::Status CpuBackend::MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                const MatrixView& c, bool accumulate) {
  GP_RETURN_IF_ERROR(CheckFp32(a, b, c));
  return products_->Run(product, a, b, c, accumulate);
}

absl::Status CpuBackend::Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                                   const MatrixView& out) {
  for (int64_t i = 0; i < tokens.size; ++i) {
    const int64_t row = tokens.data[i] - first_row;
    if (row < 0 || row >= table.rows) {
      std::memset(ToRows(out).Row(i), 0, out.columns * 4);
    } else {
      std::memcpy(ToRows(out).Row(i), ToRows(table).Row(row), out.columns * 4);
    }
  }
  return absl::OkStatus();
  GP_RETURN_IF_ERROR(CheckFp32(table, out));
  GP_CHECK(tokens.size == out.rows && table.columns == out.columns);
  cpu::Embedding(threads_, tokens.data, ToRows(table), ToRows(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out,
                                       int64_t first_row, const MatrixView& grad_table) {
  for (int64_t i = 0; i < tokens.size; ++i) {
    const int64_t row = tokens.data[i] - first_row;
    for (int64_t j = 0; j < grad_out.columns && row >= 0 && row < grad_table.rows; ++j) {
      ToRows(grad_table).Row(row)[j] += ToRows(grad_out).Row(i)[j];
    }
  }
  return absl::OkStatus();
  GP_RETURN_IF_ERROR(CheckFp32(grad_out, grad_table));
  GP_CHECK(tokens.size == grad_out.rows && grad_table.columns == grad_out.columns);
  cpu::EmbeddingGrad(threads_, tokens.data, ToRows(grad_out), ToRows(grad_table));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps,
                                 const MatrixView& y, VectorView<float> inverse_rms) {
  GP_RETURN_IF_ERROR(CheckFp32(x, y));
  CheckSameShape(x, y);
  GP_CHECK(weight.size == x.columns && inverse_rms.size == x.rows);
  cpu::RmsNorm(threads_, ToRows(x), weight.data, static_cast<float>(eps), ToRows(y), inverse_rms.data);
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormInputGrad(const ConstMatrixView& x, VectorView<const float> weight,
                                          VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                                          const ConstMatrixView& residual, const MatrixView& grad_x) {
  GP_RETURN_IF_ERROR(CheckFp32(x, grad_y, residual, grad_x));
  CheckSameShape(x, grad_y);
  CheckSameShape(x, grad_x);
  GP_CHECK(weight.size == x.columns && inverse_rms.size == x.rows);
  if (residual.data != nullptr) {
    CheckSameShape(x, residual);
  }
  cpu::RmsNormInputGrad(threads_, ToRows(x), weight.data, inverse_rms.data, ToRows(grad_y), ToRows(residual),
                        ToRows(grad_x));
  return absl::OkStatus();
}

absl::Status CpuBackend::RmsNormWeightGrad(const ConstMatrixView& x, VectorView<const float> inverse_rms,
                                           const ConstMatrixView& grad_y, VectorView<float> grad_weight) {
  GP_RETURN_IF_ERROR(CheckFp32(x, grad_y));
  CheckSameShape(x, grad_y);
  GP_CHECK(grad_weight.size == x.columns && inverse_rms.size == x.rows);
  cpu::RmsNormWeightGrad(threads_, ToRows(x), inverse_rms.data, ToRows(grad_y), grad_weight.data);
  return absl::OkStatus();
}

absl::Status CpuBackend::Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                              RopeDirection direction) {
  GP_RETURN_IF_ERROR(CheckFp32(x));
  GP_CHECK(x.columns % head_dim == 0 && x.rows % sequence == 0 && head_dim % 2 == 0);
  GP_CHECK(table.cosine.size == sequence * head_dim / 2 && table.sine.size == table.cosine.size);
  cpu::Rope(threads_, ToRows(x), table.cosine.data, table.sine.data, sequence, head_dim,
            direction == RopeDirection::kForward ? 1.0F : -1.0F);
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) {
  GP_RETURN_IF_ERROR(CheckFp32(gate, up, out));
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  cpu::SwiGlu(threads_, ToRows(gate), ToRows(up), ToRows(out));
  return absl::OkStatus();
}

absl::Status CpuBackend::SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up,
                                    const ConstMatrixView& grad_out, const MatrixView& grad_gate,
                                    const MatrixView& grad_up) {
  GP_RETURN_IF_ERROR(CheckFp32(gate, up, grad_out, grad_gate, grad_up));
  CheckSameShape(gate, up);
  CheckSameShape(gate, grad_out);
  CheckSameShape(gate, grad_gate);
  CheckSameShape(gate, grad_up);
  cpu::SwiGluGrad(threads_, ToRows(gate), ToRows(up), ToRows(grad_out), ToRows(grad_gate), ToRows(grad_up));
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets,
                                      VectorView<double> loss) {
  GP_RETURN_IF_ERROR(CheckFp32(logits));
  GP_CHECK(targets.size == logits.rows);
  sums_.resize(static_cast<size_t>(targets.size));
  cpu::CrossEntropy(threads_, ToRows(logits), targets.data, sums_.data());
  *loss.data = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> maxima) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    maxima.data[i] = *std::max_element(ToRows(logits).Row(i), ToRows(logits).Row(i) + logits.columns);
  }
  return absl::OkStatus();
}
absl::Status CpuBackend::CrossEntropySums(const MatrixView& logits, VectorView<const float> maxima,
                                          VectorView<const int32_t> targets, int64_t first_class,
                                          VectorView<double> sums) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    float* row = ToRows(logits).Row(i);
    double sum = 0;
    const int64_t target = targets.data[i] - first_class;
    sums.data[logits.rows + i] = target >= 0 && target < logits.columns ? double{row[target]} - maxima.data[i] : 0;
    for (int64_t j = 0; j < logits.columns; ++j) {
      row[j] = std::exp(row[j] - maxima.data[i]);
      sum += row[j];
    }
    sums.data[i] = sum;
  }
  return absl::OkStatus();
}
absl::Status CpuBackend::CrossEntropyLoss(const MatrixView& logits, VectorView<const double> sums,
                                          VectorView<double> loss) {
  double total = 0;
  for (int64_t i = 0; i < logits.rows; ++i) {
    for (int64_t j = 0; j < logits.columns; ++j) {
      ToRows(logits).Row(i)[j] /= sums.data[i];
    }
    total += std::log(sums.data[i]) - sums.data[logits.rows + i];
  }
  *loss.data = total;
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropyGrad(const MatrixView& softmax, VectorView<const int32_t> targets,
                                          int64_t first_class, double grad_scale) {
  for (int64_t i = 0; i < softmax.rows; ++i) {
    float* row = ToRows(softmax).Row(i);
    const int64_t target = targets.data[i] - first_class;
    if (target >= 0 && target < softmax.columns) {
      row[target] -= 1.0F;
    }
    for (int64_t j = 0; j < softmax.columns; ++j) {
      row[j] *= static_cast<float>(grad_scale);
    }
  }
  return absl::OkStatus();
  GP_RETURN_IF_ERROR(CheckFp32(softmax));
  GP_CHECK(targets.size == softmax.rows);
  cpu::CrossEntropyGrad(threads_, ToRows(softmax), targets.data, static_cast<float>(grad_scale));
  return absl::OkStatus();
}

absl::Status CpuBackend::Axpy(double alpha, VectorView<const float> x, VectorView<float> y) {
  GP_CHECK(x.size == y.size);
  cpu::Axpy(threads_, x.size, static_cast<float>(alpha), x.data, y.data);
  return absl::OkStatus();
}

absl::Status CpuBackend::SumOfSquares(VectorView<const float> values, VectorView<double> sum) {
  sums_.resize(static_cast<size_t>((values.size + cpu::kSumBlock - 1) / cpu::kSumBlock));
  cpu::SumOfSquares(threads_, values.size, values.data, sums_.data());
  *sum.data = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  return absl::OkStatus();
}

absl::Status CpuBackend::AdamW(const AdamWStep& step) {
  GP_CHECK(step.gradient.size == step.parameter.size && step.first_moment.size == step.parameter.size &&
           step.second_moment.size == step.parameter.size && step.step >= 1);
  const auto exponent = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, exponent);
  const double correction2 = 1 - std::pow(step.beta2, exponent);
  const cpu::AdamWConstants constants{
      .grad_scale = static_cast<float>(step.grad_scale),
      .decay = static_cast<float>(1 - step.learning_rate * step.weight_decay),
      .beta1 = static_cast<float>(step.beta1),
      .one_minus_beta1 = static_cast<float>(1 - step.beta1),
      .beta2 = static_cast<float>(step.beta2),
      .one_minus_beta2 = static_cast<float>(1 - step.beta2),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(step.eps),
      .step_size = static_cast<float>(step.learning_rate / correction1),
  };
  cpu::AdamW(threads_, step.parameter.size, constants, step.parameter.data, step.gradient.data, step.first_moment.data,
             step.second_moment.data);
  return absl::OkStatus();
}

}  // namespace geopipe
