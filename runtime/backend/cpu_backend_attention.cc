// Causal grouped-query attention of the cpu backend: oneDNN products around the softmax kernels, one head at a time.
// Query rows go in blocks, each against the keys that it can see, so that about half of the square is never touched.
#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {
namespace {

// Rows of a block: large enough for efficient products.
constexpr int64_t kBlockRows = 64;

void CheckShape(const AttentionShape& shape, const ConstMatrixView& q, const ConstMatrixView& k,
                const ConstMatrixView& v, const ConstMatrixView& probabilities, const ConstMatrixView& out) {
  const int64_t tokens = shape.batch * shape.sequence;
  GP_CHECK(shape.heads % shape.kv_heads == 0);
  GP_CHECK(q.rows == tokens && q.columns == shape.heads * shape.head_dim);
  GP_CHECK(k.rows == tokens && k.columns == shape.kv_heads * shape.head_dim);
  GP_CHECK(v.rows == tokens && v.columns == k.columns);
  GP_CHECK(out.rows == tokens && out.columns == q.columns);
  GP_CHECK(probabilities.rows == tokens * shape.heads && probabilities.columns == shape.sequence);
  for (const DType dtype : {k.dtype, v.dtype, probabilities.dtype, out.dtype}) {
    GP_CHECK(dtype == q.dtype, "attention of {} with {}", DTypeName(q.dtype), DTypeName(dtype));
  }
}

float ScoreScale(const AttentionShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

}  // namespace

absl::Status CpuBackend::ReserveWorkspace(int64_t floats) {
  const auto bytes = floats * static_cast<int64_t>(sizeof(float));
  if (bytes > workspace_.size()) {
    workspace_ = Buffer();
    GP_ASSIGN_OR_RETURN(workspace_, allocator_.Allocate(bytes, MemoryCategory::kWorkspace));
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionState> CpuBackend::Attention(const AttentionShape& shape, Tensor query, Tensor key,
                                                     Tensor value, const MatrixView& out, MemoryCategory category) {
  GP_ASSIGN_OR_RETURN(Tensor probabilities,
                      Tensor::Create(allocator_, category, query.dtype(),
                                     {shape.batch * shape.heads * shape.sequence, shape.sequence}));
  GP_RETURN_IF_ERROR(AttentionForward(shape, ViewOf(query), ViewOf(key), ViewOf(value), ViewOf(probabilities), out));
  return AttentionState{std::move(query), std::move(key), std::move(value), std::move(probabilities)};
}

absl::StatusOr<AttentionGradients> CpuBackend::AttentionGrad(const AttentionShape& shape, AttentionState state,
                                                             const ConstMatrixView& /*out*/, Tensor grad_out) {
  GP_RETURN_IF_ERROR(AttentionBackward(shape, ViewOf(state.query), ViewOf(state.key), ViewOf(state.value),
                                       ViewOf(state.statistics), ViewOf(grad_out), ViewOf(grad_out), ViewOf(state.key),
                                       ViewOf(state.value)));
  return AttentionGradients{std::move(grad_out), std::move(state.key), std::move(state.value)};
}

absl::Status CpuBackend::AttentionForward(const AttentionShape& shape, const ConstMatrixView& q,
                                          const ConstMatrixView& k, const ConstMatrixView& v,
                                          const MatrixView& probabilities, const MatrixView& out) {
  CheckShape(shape, q, k, v, probabilities, out);
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const float scale = ScoreScale(shape);
  // Probabilities of fp32 replace their scores in place.
  const bool in_place = probabilities.dtype == DType::kFp32;
  if (!in_place) {
    GP_RETURN_IF_ERROR(ReserveWorkspace(std::min(kBlockRows, s) * s));
  }
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_column = head / (shape.heads / shape.kv_heads) * d;
      const MatrixView matrix = Sub(probabilities, (sample * shape.heads + head) * s, s, 0, s);
      for (int64_t row = 0; row < s; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, s - row);
        const int64_t keys = row + rows;
        const MatrixView block = Sub(matrix, row, rows, 0, keys);
        const MatrixView scores = in_place ? block : Fp32View(workspace(), rows, keys);
        GP_RETURN_IF_ERROR(products_->Run(Product::kNT, Sub(q, sample * s + row, rows, head * d, d),
                                          Sub(k, sample * s, keys, kv_column, d), scores, /*accumulate=*/false));
        GP_RETURN_IF_ERROR(WithElements(block.dtype, [&]<class T>(T) {
          cpu::AttentionKernels<T>::CausalSoftmax(ToRows<float>(scores), ToRows<T>(block), row, scale);
        }));
        GP_RETURN_IF_ERROR(products_->Run(Product::kNN, block, Sub(v, sample * s, keys, kv_column, d),
                                          Sub(out, sample * s + row, rows, head * d, d), /*accumulate=*/false));
      }
    }
  }
  return absl::OkStatus();
}

struct CpuBackend::HeadGroup {
  ConstMatrixView q;              // [s, group * d]
  ConstMatrixView k;              // [s, d]
  ConstMatrixView v;              // [s, d]
  ConstMatrixView probabilities;  // [group * s, s]
  ConstMatrixView grad_out;       // [s, group * d]
  MatrixView grad_q;              // [s, group * d]
  MatrixView grad_k;              // [s, d]
  MatrixView grad_v;              // [s, d]
};

absl::Status CpuBackend::AttentionBackward(const AttentionShape& shape, const ConstMatrixView& q,
                                           const ConstMatrixView& k, const ConstMatrixView& v,
                                           const ConstMatrixView& probabilities, const ConstMatrixView& grad_out,
                                           const MatrixView& grad_q, const MatrixView& grad_k,
                                           const MatrixView& grad_v) {
  CheckShape(shape, q, k, v, probabilities, grad_out);
  CheckShape(shape, grad_q, grad_k, grad_v, probabilities, grad_out);
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  // Workspace for the gradients of one group's keys and values, and of one block of scores.
  GP_RETURN_IF_ERROR(ReserveWorkspace(2 * s * d + std::min(kBlockRows, s) * s));
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      const int64_t row = sample * s;
      const int64_t columns = group * d;
      GP_RETURN_IF_ERROR(AttentionGroupGrad(
          shape, {.q = Sub(q, row, s, kv * columns, columns),
                  .k = Sub(k, row, s, kv * d, d),
                  .v = Sub(v, row, s, kv * d, d),
                  .probabilities = Sub(probabilities, (sample * shape.heads + kv * group) * s, group * s, 0, s),
                  .grad_out = Sub(grad_out, row, s, kv * columns, columns),
                  .grad_q = Sub(grad_q, row, s, kv * columns, columns),
                  .grad_k = Sub(grad_k, row, s, kv * d, d),
                  .grad_v = Sub(grad_v, row, s, kv * d, d)}));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::AttentionGroupGrad(const AttentionShape& shape, const HeadGroup& group) {
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const float scale = ScoreScale(shape);
  float* floats = workspace();
  // The gradients stay apart until the group is done: grad_k and grad_v may be the memory of k and v, and of fewer
  // bits.
  const MatrixView grad_k = Fp32View(floats, s, d);
  const MatrixView grad_v = Fp32View(floats + s * d, s, d);
  GP_RETURN_IF_ERROR(Zero({floats, 2 * s * d}));

  for (int64_t head = 0; head < shape.heads / shape.kv_heads; ++head) {
    for (int64_t row = 0; row < s; row += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, s - row);
      const int64_t keys = row + rows;
      const ConstMatrixView q = Sub(group.q, row, rows, head * d, d);
      const ConstMatrixView k = Sub(group.k, 0, keys, 0, d);
      const ConstMatrixView v = Sub(group.v, 0, keys, 0, d);
      const ConstMatrixView p = Sub(group.probabilities, head * s + row, rows, 0, keys);
      const ConstMatrixView grad_out = Sub(group.grad_out, row, rows, head * d, d);
      const MatrixView grad_p = Fp32View(floats + 2 * s * d, rows, keys);
      MatrixView grad_scores = grad_p;  // in the same memory, from its beginning on
      grad_scores.dtype = p.dtype;
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, p, grad_out, Sub(grad_v, 0, keys, 0, d), /*accumulate=*/true));
      GP_RETURN_IF_ERROR(products_->Run(Product::kNT, grad_out, v, grad_p, /*accumulate=*/false));
      GP_RETURN_IF_ERROR(WithElements(p.dtype, [&]<class T>(T) {
        cpu::AttentionKernels<T>::CausalSoftmaxGrad(ToRows<T>(p), ToRows<float>(ConstMatrixView(grad_p)),
                                                    ToRows<T>(grad_scores), row, scale);
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, grad_scores, q, Sub(grad_k, 0, keys, 0, d), /*accumulate=*/true));
      // This comes last: grad_q may be the memory of grad_out.
      GP_RETURN_IF_ERROR(products_->Run(Product::kNN, grad_scores, k, Sub(group.grad_q, row, rows, head * d, d),
                                        /*accumulate=*/false));
    }
  }
  GP_RETURN_IF_ERROR(ConvertRows(threads_, grad_k, group.grad_k));
  return ConvertRows(threads_, grad_v, group.grad_v);
}

}  // namespace geopipe
