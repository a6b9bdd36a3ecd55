#include "runtime/gpu/gpu_backend.h"

#include <algorithm>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/gpu_workspace.h"
#include "runtime/backend/adamw_constants.h"

namespace geopipe {
namespace {

// The planner's count of kernels' partial sums is the port's.
static_assert(kGpuNormGradParts == kGpRmsNormGradParts && kGpuSquaresChunk == kGpSquaresChunk);

void CheckType(const ConstMatrixView& view, DType dtype) {
  GP_CHECK(view.dtype == dtype, "a matrix of {} where {} is needed", DTypeName(view.dtype), DTypeName(dtype));
}

template <class T>
T* As(std::byte* data) {
  return reinterpret_cast<T*>(data);
}
template <class T>
const T* As(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}

}  // namespace

GpuBackend::GpuBackend(GpuDevice& device, Allocator& allocator)
    : device_(device),
      products_(device, allocator),
      workspace_(allocator),
      zeros_(allocator),
      attention_(device, products_, workspace_) {}

void GpuBackend::RunDry(bool on) {
  dry_ = on;
  products_.RunDry(on);
  attention_.RunDry(on);
}

template <class T>
absl::StatusOr<T*> GpuBackend::Partials(int64_t bytes) {
  GP_ASSIGN_OR_RETURN(std::byte * memory, workspace_.Take(bytes));
  return As<T>(memory);
}

absl::Status GpuBackend::ZeroBytes(std::byte* data, int64_t bytes) {
  if (dry_ || bytes == 0) {
    return absl::OkStatus();
  }
  GP_RETURN_IF_ERROR(device_.Enter());
  return device_.StatusOf(device_.port().runtime.fill(data, 0, bytes, device_.stream(Queue::kCompute)),
                          "enqueuing zeros");
}

absl::Status GpuBackend::MatMul(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                const Addend& addend, const MatrixView& c) {
  const GpProductShape shape = ProductShapeOf(product, a, b, addend, c);
  if (shape.m == 0 || shape.n == 0) {
    return absl::OkStatus();
  }
  if (shape.k == 0) {
    return MatMulOfNothing(a.dtype, addend, c);
  }
  if (shape.has_row != 0 && c.dtype != DType::kFp32) {
    return MatMulThroughFp32(product, a, b, addend, c);
  }
  return products_.Run(shape, {.a = a.data, .b = b.data, .c = addend.matrix.data, .row = addend.row.data, .d = c.data});
}

absl::Status GpuBackend::MatMulThroughFp32(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                           const Addend& addend, const MatrixView& c) {
  const int64_t row_bytes = c.columns * ByteSize(DType::kFp32);
  const int64_t rows = GpuFp32ResultRows(c.rows, c.columns);
  GP_ASSIGN_OR_RETURN(std::byte * memory, workspace_.Take(rows * row_bytes));
  for (int64_t first = 0; first < c.rows; first += rows) {
    const int64_t count = std::min(rows, c.rows - first);
    const MatrixView sums = {.data = memory, .rows = count, .columns = c.columns, .stride = c.columns};
    Addend of_rows = {.matrix = {}, .row = addend.row};
    if (addend.matrix.data != nullptr) {
      GP_RETURN_IF_ERROR(Convert(RowsOf(addend.matrix, first, count), sums));
      of_rows.matrix = sums;
    }
    const ConstMatrixView part = product == Product::kTN ? ColumnsOf(a, first, count) : RowsOf(a, first, count);
    GP_RETURN_IF_ERROR(MatMul(product, part, b, of_rows, sums));
    GP_RETURN_IF_ERROR(Convert(sums, RowsOf(c, first, count)));
  }
  return absl::OkStatus();
}

absl::Status GpuBackend::MatMulOfNothing(DType operands, const Addend& addend, const MatrixView& c) {
  const int64_t bytes = std::max(c.rows, c.columns) * ByteSize(operands);
  GP_ASSIGN_OR_RETURN(std::byte * zeros, zeros_.Take(bytes));
  GP_RETURN_IF_ERROR(ZeroBytes(zeros, bytes));
  const MatrixView a = {.data = zeros, .rows = c.rows, .columns = 1, .stride = 1, .dtype = operands};
  const MatrixView b = {.data = zeros, .rows = 1, .columns = c.columns, .stride = c.columns, .dtype = operands};
  return MatMul(Product::kNN, a, b, addend, c);
}

absl::Status GpuBackend::Embedding(VectorView<const int32_t> tokens, const ConstMatrixView& table, int64_t first_row,
                                   const MatrixView& out) {
  GP_CHECK(tokens.size == out.rows && table.columns == out.columns);
  CheckType(out, table.dtype);
  return Launch(kernels().embedding, GpEmbedding{.dtype = PortTypeOf(table.dtype),
                                                 .rows = out.rows,
                                                 .tokens = tokens.data,
                                                 .columns = out.columns,
                                                 .table = table.data,
                                                 .table_rows = table.rows,
                                                 .table_stride = table.stride,
                                                 .first_row = first_row,
                                                 .out = out.data,
                                                 .out_stride = out.stride});
}

absl::Status GpuBackend::EmbeddingGrad(VectorView<const int32_t> tokens, const ConstMatrixView& grad_out,
                                       int64_t first_row, const MatrixView& grad_table) {
  GP_CHECK(tokens.size == grad_out.rows && grad_table.columns == grad_out.columns);
  CheckType(grad_table, DType::kFp32);
  return Launch(kernels().embedding_grad, GpEmbeddingGrad{.dtype = PortTypeOf(grad_out.dtype),
                                                          .rows = grad_out.rows,
                                                          .tokens = tokens.data,
                                                          .columns = grad_out.columns,
                                                          .grad_out = grad_out.data,
                                                          .grad_out_stride = grad_out.stride,
                                                          .grad_table = As<float>(grad_table.data),
                                                          .table_rows = grad_table.rows,
                                                          .grad_table_stride = grad_table.stride,
                                                          .first_row = first_row});
}

absl::Status GpuBackend::RmsNorm(const ConstMatrixView& x, VectorView<const float> weight, double eps,
                                 const MatrixView& y, VectorView<float> inverse_rms) {
  CheckSameShape(x, y);
  CheckType(y, x.dtype);
  CheckGroups(x, weight.size, inverse_rms.size);
  return Launch(kernels().rms_norm, GpRmsNorm{.dtype = PortTypeOf(x.dtype),
                                              .rows = x.rows,
                                              .groups = x.columns / weight.size,
                                              .width = weight.size,
                                              .x = x.data,
                                              .x_stride = x.stride,
                                              .weight = weight.data,
                                              .eps = static_cast<float>(eps),
                                              .y = y.data,
                                              .y_stride = y.stride,
                                              .inverse_rms = inverse_rms.data});
}

absl::Status GpuBackend::RmsNormGrad(const ConstMatrixView& x, VectorView<const float> weight,
                                     VectorView<const float> inverse_rms, const ConstMatrixView& grad_y,
                                     const ConstMatrixView& residual, const MatrixView& grad_x,
                                     VectorView<float> grad_weight) {
  CheckGroups(x, weight.size, inverse_rms.size);
  GP_CHECK(grad_weight.size == weight.size);
  for (const ConstMatrixView& other : {grad_y, ConstMatrixView(grad_x), residual.data == nullptr ? x : residual}) {
    CheckSameShape(x, other);
    CheckType(other, x.dtype);
  }
  const int64_t groups = x.columns / weight.size;
  GP_ASSIGN_OR_RETURN(float* partials, Partials<float>(GpRmsNormGradWorkspaceBytes(x.rows, groups, weight.size)));
  return Launch(kernels().rms_norm_grad, GpRmsNormGrad{.dtype = PortTypeOf(x.dtype),
                                                       .rows = x.rows,
                                                       .groups = groups,
                                                       .width = weight.size,
                                                       .x = x.data,
                                                       .x_stride = x.stride,
                                                       .weight = weight.data,
                                                       .inverse_rms = inverse_rms.data,
                                                       .grad_y = grad_y.data,
                                                       .grad_y_stride = grad_y.stride,
                                                       .residual = residual.data,
                                                       .residual_stride = residual.stride,
                                                       .grad_x = grad_x.data,
                                                       .grad_x_stride = grad_x.stride,
                                                       .grad_weight = grad_weight.data,
                                                       .workspace = partials});
}

absl::Status GpuBackend::SumRows(const ConstMatrixView& values, VectorView<float> sum) {
  GP_CHECK(sum.size == values.columns);
  return Launch(kernels().sum_rows, GpSumRows{.dtype = PortTypeOf(values.dtype),
                                              .rows = values.rows,
                                              .columns = values.columns,
                                              .values = values.data,
                                              .values_stride = values.stride,
                                              .sum = sum.data});
}

absl::Status GpuBackend::Rope(const MatrixView& x, const RopeTable& table, int64_t sequence, int64_t head_dim,
                              RopeDirection direction) {
  GP_CHECK(x.columns % head_dim == 0 && x.rows % sequence == 0 && head_dim % 2 == 0);
  GP_CHECK(table.cosine.size == sequence * head_dim / 2 && table.sine.size == table.cosine.size);
  return Launch(kernels().rope, GpRope{.dtype = PortTypeOf(x.dtype),
                                       .rows = x.rows,
                                       .sequence = sequence,
                                       .heads = x.columns / head_dim,
                                       .head_dim = head_dim,
                                       .x = x.data,
                                       .x_stride = x.stride,
                                       .cosine = table.cosine.data,
                                       .sine = table.sine.data,
                                       .backward = direction == RopeDirection::kBackward ? 1 : 0});
}

absl::Status GpuBackend::Attention(const AttentionShape& shape, const ConstMatrixView& query,
                                   const ConstMatrixView& key, const ConstMatrixView& value, const MatrixView& out,
                                   VectorView<float> statistics) {
  CheckAttention(shape, query, key, value, out, statistics.size);
  return attention_.Forward(shape, query, key, value, out, statistics);
}

absl::Status GpuBackend::AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query,
                                       const ConstMatrixView& key, const ConstMatrixView& value,
                                       const ConstMatrixView& out, VectorView<const float> statistics,
                                       const ConstMatrixView& grad_out, const MatrixView& grad_query,
                                       const MatrixView& grad_key, const MatrixView& grad_value) {
  CheckAttention(shape, query, key, value, out, statistics.size);
  CheckAttention(shape, grad_query, grad_key, grad_value, grad_out, statistics.size);
  return attention_.Backward(shape, query, key, value, statistics, grad_out, grad_query, grad_key, grad_value);
}

absl::Status GpuBackend::SwiGlu(const ConstMatrixView& gate, const ConstMatrixView& up, const MatrixView& out) {
  for (const ConstMatrixView& other : {up, ConstMatrixView(out)}) {
    CheckSameShape(gate, other);
    CheckType(other, gate.dtype);
  }
  return Launch(kernels().swiglu, GpSwiGlu{.dtype = PortTypeOf(gate.dtype),
                                           .rows = gate.rows,
                                           .columns = gate.columns,
                                           .gate = gate.data,
                                           .gate_stride = gate.stride,
                                           .up = up.data,
                                           .up_stride = up.stride,
                                           .out = out.data,
                                           .out_stride = out.stride});
}

absl::Status GpuBackend::SwiGluGrad(const ConstMatrixView& gate, const ConstMatrixView& up,
                                    const ConstMatrixView& grad_out, const MatrixView& grad_gate,
                                    const MatrixView& grad_up) {
  for (const ConstMatrixView& other : {up, grad_out, ConstMatrixView(grad_gate), ConstMatrixView(grad_up)}) {
    CheckSameShape(gate, other);
    CheckType(other, gate.dtype);
  }
  return Launch(kernels().swiglu_grad, GpSwiGluGrad{.dtype = PortTypeOf(gate.dtype),
                                                    .rows = gate.rows,
                                                    .columns = gate.columns,
                                                    .gate = gate.data,
                                                    .gate_stride = gate.stride,
                                                    .up = up.data,
                                                    .up_stride = up.stride,
                                                    .grad_out = grad_out.data,
                                                    .grad_out_stride = grad_out.stride,
                                                    .grad_gate = grad_gate.data,
                                                    .grad_gate_stride = grad_gate.stride,
                                                    .grad_up = grad_up.data,
                                                    .grad_up_stride = grad_up.stride});
}

absl::Status GpuBackend::CrossEntropy(const MatrixView& logits, VectorView<const int32_t> targets, double grad_scale,
                                      const MatrixView& gradient, VectorView<double> loss) {
  GP_CHECK(targets.size == logits.rows);
  CheckType(logits, DType::kFp32);
  if (gradient.data != nullptr) {
    CheckSameShape(logits, gradient);
  }
  GP_ASSIGN_OR_RETURN(double* losses, Partials<double>(logits.rows * ByteSize(DType::kFp64)));
  return Launch(kernels().cross_entropy, GpCrossEntropy{.gradient_type = PortTypeOf(gradient.dtype),
                                                        .rows = logits.rows,
                                                        .classes = logits.columns,
                                                        .logits = As<float>(logits.data),
                                                        .logits_stride = logits.stride,
                                                        .targets = targets.data,
                                                        .grad_scale = static_cast<float>(grad_scale),
                                                        .gradient = gradient.data,
                                                        .gradient_stride = gradient.stride,
                                                        .loss = loss.data,
                                                        .workspace = losses});
}

absl::Status GpuBackend::CrossEntropyMax(const ConstMatrixView& logits, VectorView<float> max) {
  GP_CHECK(max.size == logits.rows);
  CheckType(logits, DType::kFp32);
  return Launch(kernels().cross_entropy_max, GpCrossEntropyMax{.rows = logits.rows,
                                                               .classes = logits.columns,
                                                               .logits = As<float>(logits.data),
                                                               .logits_stride = logits.stride,
                                                               .max = max.data});
}

absl::Status GpuBackend::CrossEntropySums(const MatrixView& logits, VectorView<const float> max,
                                          VectorView<const int32_t> targets, int64_t first_class,
                                          VectorView<float> sums) {
  GP_CHECK(max.size == logits.rows && targets.size == logits.rows && sums.size == 2 * logits.rows);
  CheckType(logits, DType::kFp32);
  return Launch(kernels().cross_entropy_sums, GpCrossEntropySums{.rows = logits.rows,
                                                                 .classes = logits.columns,
                                                                 .logits = As<float>(logits.data),
                                                                 .logits_stride = logits.stride,
                                                                 .max = max.data,
                                                                 .targets = targets.data,
                                                                 .first_class = first_class,
                                                                 .sums = sums.data});
}

absl::Status GpuBackend::CrossEntropyGrad(const ConstMatrixView& exponentials, VectorView<const float> max,
                                          VectorView<const float> sums, VectorView<const int32_t> targets,
                                          int64_t first_class, double grad_scale, const MatrixView& gradient,
                                          VectorView<double> loss) {
  GP_CHECK(max.size == exponentials.rows && targets.size == max.size && sums.size == 2 * max.size);
  CheckType(exponentials, DType::kFp32);
  if (gradient.data != nullptr) {
    CheckSameShape(exponentials, gradient);
  }
  GP_ASSIGN_OR_RETURN(double* losses, Partials<double>(max.size * ByteSize(DType::kFp64)));
  return Launch(kernels().cross_entropy_grad, GpCrossEntropyGrad{.gradient_type = PortTypeOf(gradient.dtype),
                                                                 .rows = exponentials.rows,
                                                                 .classes = exponentials.columns,
                                                                 .exponentials = As<float>(exponentials.data),
                                                                 .exponentials_stride = exponentials.stride,
                                                                 .max = max.data,
                                                                 .sums = sums.data,
                                                                 .targets = targets.data,
                                                                 .first_class = first_class,
                                                                 .grad_scale = static_cast<float>(grad_scale),
                                                                 .gradient = gradient.data,
                                                                 .gradient_stride = gradient.stride,
                                                                 .loss = loss.data,
                                                                 .workspace = losses});
}

absl::Status GpuBackend::Axpy(double alpha, VectorView<const float> x, VectorView<float> y) {
  GP_CHECK(x.size == y.size);
  return Launch(kernels().axpy, GpAxpy{.size = x.size, .alpha = static_cast<float>(alpha), .x = x.data, .y = y.data});
}

absl::Status GpuBackend::Convert(const ConstMatrixView& from, const MatrixView& to) {
  CheckSameShape(from, to);
  return Launch(kernels().convert, GpConvert{.from_type = PortTypeOf(from.dtype),
                                             .to_type = PortTypeOf(to.dtype),
                                             .rows = to.rows,
                                             .columns = to.columns,
                                             .from = from.data,
                                             .from_stride = from.stride,
                                             .to = to.data,
                                             .to_stride = to.stride});
}

absl::Status GpuBackend::SquareRuns(DType dtype, const void* values, const std::vector<GpRun>& runs,
                                    VectorView<double> sums) {
  const auto count = static_cast<int64_t>(runs.size());
  GP_CHECK(sums.size == count);
  GP_ASSIGN_OR_RETURN(double* chunks, Partials<double>(GpSumsOfSquaresWorkspaceBytes(runs.data(), count)));
  return Launch(kernels().sums_of_squares, GpSumsOfSquares{.dtype = PortTypeOf(dtype),
                                                           .values = values,
                                                           .run_count = count,
                                                           .runs = runs.data(),
                                                           .sums = sums.data,
                                                           .workspace = chunks});
}

absl::Status GpuBackend::SumOfSquares(const ConstMatrixView& values, VectorView<double> sum) {
  GP_CHECK(values.stride == values.columns, "rows {} apart of {} values", values.stride, values.columns);
  return SquareRuns(values.dtype, values.data, {{.begin = 0, .end = values.rows * values.columns}}, sum);
}

absl::Status GpuBackend::SumsOfSquares(VectorView<const float> values, const std::vector<Run>& runs,
                                       VectorView<double> sums) {
  std::vector<GpRun> of_port;
  for (const auto& [begin, end] : runs) {
    GP_CHECK(begin <= end && (begin == end || (begin >= 0 && end <= values.size)), "[{}, {}) of {}", begin, end,
             values.size);
    of_port.push_back({.begin = begin, .end = end});
  }
  return SquareRuns(DType::kFp32, values.data, of_port, sums);
}

absl::Status GpuBackend::AdamW(const AdamWStep& step) {
  const AdamWConstants c = ConstantsOf(step);
  return Launch(kernels().adamw, GpAdamW{.size = step.parameter.size,
                                         .grad_scale = c.grad_scale,
                                         .decay = c.decay,
                                         .beta1 = c.beta1,
                                         .one_minus_beta1 = c.one_minus_beta1,
                                         .beta2 = c.beta2,
                                         .one_minus_beta2 = c.one_minus_beta2,
                                         .sqrt_bias_correction2 = c.sqrt_bias_correction2,
                                         .eps = c.eps,
                                         .step_size = c.step_size,
                                         .gradient = step.gradient.data,
                                         .parameter = step.parameter.data,
                                         .first_moment = step.first_moment.data,
                                         .second_moment = step.second_moment.data,
                                         .compute_weight = step.compute_weight.data});
}

}  // namespace geopipe
