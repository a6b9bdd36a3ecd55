#include "runtime/backend/cpu_backend.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {
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
  GP_ASSIGN_OR_RETURN(std::unique_ptr<cpu::MatMulCache> products,
                      cpu::MatMulCache::Create(threads, cpu::BestBf16Products()));
  return std::unique_ptr<CpuBackend>(new CpuBackend(threads, allocator, std::move(products)));
}

void CpuBackend::RunDry(bool on) {
  dry_ = on;
  products_->RunDry(on);
}

absl::Status CpuBackend::ZeroBytes(std::byte* data, int64_t bytes) {
  if (!dry_) {
    std::memset(data, 0, static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                const Addend& addend, const MatrixView& c) {
  return products_->Run(product, a, b, addend, c);
}

absl::Status CpuBackend::Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                                   const MatrixView& out) {
  GP_CHECK(tokens.size == out.rows && table.columns == out.columns);
  return Launch(table.dtype, [&]<class T, class W>(T, W) {
    cpu::EmbeddingKernels<T, W>::Embedding(threads_, tokens.data, ToRows<T>(table), first_row, ToRows<T>(out));
  });
}

absl::Status CpuBackend::EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out,
                                       int64_t first_row, const MatrixView& grad_table) {
  GP_CHECK(tokens.size == grad_out.rows && grad_table.columns == grad_out.columns);
  return Launch(grad_out.dtype, [&]<class T, class W>(T, W) {
    cpu::EmbeddingKernels<T, W>::EmbeddingGrad(threads_, tokens.data, ToRows<T>(grad_out), first_row,
                                               ToRows<float>(grad_table));
  });
}

absl::Status CpuBackend::RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps,
                                 const MatrixView& y, VectorView<float> inverse_rms) {
  CheckSameShape(x, y);
  CheckGroups(x, weight.size, inverse_rms.size);
  return Launch(x.dtype, [&]<class T, class W>(T, W) {
    cpu::NormKernels<T, W>::RmsNorm(threads_, ToRows<T>(x), weight.size, weight.data, static_cast<float>(eps),
                                    ToRows<T>(y), inverse_rms.data);
  });
}

absl::Status CpuBackend::RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                                     VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                                     const ConstMatrixView& residual, const MatrixView& grad_x,
                                     VectorView<float> grad_weight) {
  CheckSameShape(x, grad_y);
  CheckSameShape(x, grad_x);
  CheckGroups(x, weight.size, inverse_rms.size);
  GP_CHECK(grad_weight.size == weight.size);
  if (residual.data != nullptr) {
    CheckSameShape(x, residual);
  }
  const int64_t blocks = (x.rows + cpu::kNormBlock - 1) / cpu::kNormBlock;
  block_sums_.resize(static_cast<size_t>(blocks * weight.size));
  GP_RETURN_IF_ERROR(Launch(x.dtype, [&]<class T, class W>(T, W) {
    cpu::NormKernels<T, W>::RmsNormGrad(
        threads_, ToRows<T>(x), weight.size, weight.data, inverse_rms.data, ToRows<T>(grad_y),
        residual.data == nullptr ? cpu::Rows<const T>() : ToRows<T>(residual), ToRows<T>(grad_x), block_sums_.data());
  }));
  for (int64_t block = 0; block < blocks; ++block) {
    Launch([&]<class W>(W) {
      cpu::VectorKernels<W>::Axpy(1, weight.size, 1.0F, block_sums_.data() + block * weight.size, grad_weight.data);
    });
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::SumRows(const ConstMatrixView& values, VectorView<float> sum) {
  GP_CHECK(sum.size == values.columns);
  return Launch(values.dtype, [&]<class T, class W>(T, W) {
    cpu::ElementwiseKernels<T, W>::SumRows(threads_, ToRows<T>(values), sum.data);
  });
}

absl::Status CpuBackend::Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                              RopeDirection direction) {
  GP_CHECK(x.columns % head_dim == 0 && x.rows % sequence == 0 && head_dim % 2 == 0);
  GP_CHECK(table.cosine.size == sequence * head_dim / 2 && table.sine.size == table.cosine.size);
  return Launch(x.dtype, [&]<class T, class W>(T, W) {
    cpu::AttentionKernels<T, W>::Rope(threads_, ToRows<T>(x), table.cosine.data, table.sine.data, sequence, head_dim,
                                      direction == RopeDirection::kForward ? 1.0F : -1.0F);
  });
}

absl::Status CpuBackend::SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, out);
  return Launch(gate.dtype, [&]<class T, class W>(T, W) {
    cpu::ElementwiseKernels<T, W>::SwiGlu(threads_, ToRows<T>(gate), ToRows<T>(up), ToRows<T>(out));
  });
}

absl::Status CpuBackend::SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up,
                                    const ConstMatrixView& grad_out, const MatrixView& grad_gate,
                                    const MatrixView& grad_up) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, grad_out);
  CheckSameShape(gate, grad_gate);
  CheckSameShape(gate, grad_up);
  return Launch(gate.dtype, [&]<class T, class W>(T, W) {
    cpu::ElementwiseKernels<T, W>::SwiGluGrad(threads_, ToRows<T>(gate), ToRows<T>(up), ToRows<T>(grad_out),
                                              ToRows<T>(grad_gate), ToRows<T>(grad_up));
  });
}

absl::Status CpuBackend::CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                                      const MatrixView& gradient, VectorView<double> loss) {
  GP_CHECK(targets.size == logits.rows);
  if (gradient.data != nullptr) {
    CheckSameShape(logits, gradient);
  }
  sums_.resize(static_cast<size_t>(targets.size));
  GP_RETURN_IF_ERROR(Launch(gradient.dtype, [&]<class T, class W>(T, W) {
    cpu::LossKernels<T, W>::CrossEntropy(threads_, ToRows<float>(logits), targets.data, static_cast<float>(grad_scale),
                                         ToRows<T>(gradient), sums_.data());
  }));
  *loss.data = std::accumulate(sums_.begin(), sums_.end(), *loss.data);
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) {
  GP_CHECK(max.size == logits.rows);
  Launch([&]<class W>(W) { cpu::SlicedLossKernels<W>::CrossEntropyMax(threads_, ToRows<float>(logits), max.data); });
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                          VectorView<const int32_t> targets, int64_t first_class,
                                          VectorView<float> sums) {
  GP_CHECK(max.size == logits.rows && targets.size == logits.rows && sums.size == 2 * logits.rows);
  Launch([&]<class W>(W) {
    cpu::SlicedLossKernels<W>::CrossEntropySums(threads_, ToRows<float>(logits), max.data, targets.data, first_class,
                                                sums.data);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                          VectorView<const float> sums, VectorView<const int32_t> targets,
                                          int64_t first_class, double grad_scale, const MatrixView& gradient,
                                          VectorView<double> loss) {
  GP_CHECK(max.size == exponentials.rows && targets.size == max.size && sums.size == 2 * max.size);
  if (gradient.data != nullptr) {
    CheckSameShape(exponentials, gradient);
  }
  sums_.resize(static_cast<size_t>(max.size));
  GP_RETURN_IF_ERROR(Launch(gradient.dtype, [&]<class T, class W>(T, W) {
    cpu::LossKernels<T, W>::CrossEntropyGrad(threads_, ToRows<float>(exponentials), max.data, sums.data, targets.data,
                                             first_class, static_cast<float>(grad_scale), ToRows<T>(gradient),
                                             sums_.data());
  }));
  *loss.data = std::accumulate(sums_.begin(), sums_.end(), *loss.data);
  return absl::OkStatus();
}

absl::Status CpuBackend::Axpy(double alpha, VectorView<const float> x, VectorView<float> y) {
  GP_CHECK(x.size == y.size);
  Launch([&]<class W>(W) { cpu::VectorKernels<W>::Axpy(threads_, x.size, static_cast<float>(alpha), x.data, y.data); });
  return absl::OkStatus();
}

absl::Status CpuBackend::Convert(const ConstMatrixView& from, const MatrixView& to) {
  return dry_ ? absl::OkStatus() : ConvertRows(threads_, from, to);
}

absl::Status CpuBackend::SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) {
  GP_CHECK(values.stride == values.columns, "rows {} apart of {} values", values.stride, values.columns);
  const int64_t count = values.rows * values.columns;
  sums_.resize(static_cast<size_t>((count + cpu::kSumBlock - 1) / cpu::kSumBlock));
  GP_RETURN_IF_ERROR(Launch(values.dtype, [&]<class T, class W>(T, W) {
    cpu::ElementwiseKernels<T, W>::SumOfSquares(threads_, count, ToRows<T>(values).data, sums_.data());
  }));
  *sum.data = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  return absl::OkStatus();
}

absl::Status CpuBackend::SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                                       VectorView<double> sums) {
  GP_CHECK(sums.size == std::ssize(runs));
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t begin = runs[i].first;
    const int64_t end = runs[i].second;
    GP_CHECK(begin <= end && (begin == end || (begin >= 0 && end <= values.size)), "[{}, {}) of {}", begin, end,
             values.size);
    sums_.resize(static_cast<size_t>((end - begin + cpu::kSumBlock - 1) / cpu::kSumBlock));
    Launch([&]<class W>(W) {
      cpu::ElementwiseKernels<float, W>::SumOfSquares(threads_, end - begin, values.data + begin, sums_.data());
    });
    sums.data[i] = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::AdamW(const AdamWStep& step) {
  const AdamWConstants constants = ConstantsOf(step);
  Launch([&]<class W>(W) {
    cpu::VectorKernels<W>::AdamW(threads_, step.parameter.size, constants, step.parameter.data, step.gradient.data,
                                 step.first_moment.data, step.second_moment.data, step.compute_weight.data);
  });
  return absl::OkStatus();
}

}  // namespace geopipe
