// Causal grouped-query attention of the cpu backend: oneDNN products around the softmax kernels, one head at a time.
// Query rows go in blocks, each against blocks of the keys that it can see (arXiv 2205.14135), so that scores never lie
// in memory as a whole and about half of them are never made.
#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {
namespace {

using cpu::kKeys;
using cpu::kQueries;

void CheckShape(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                const ConstMatrixView& value, const ConstMatrixView& out, int64_t statistics) {
  const int64_t tokens = shape.batch * shape.sequence;
  GP_CHECK(shape.heads % shape.kv_heads == 0);
  GP_CHECK(query.rows == tokens && query.columns == shape.heads * shape.head_dim);
  GP_CHECK(key.rows == tokens && key.columns == shape.kv_heads * shape.head_dim);
  CheckSameShape(key, value);
  CheckSameShape(query, out);
  GP_CHECK(statistics == tokens * shape.heads, "{} statistics of {} rows", statistics, tokens * shape.heads);
  for (const DType dtype : {key.dtype, value.dtype, out.dtype}) {
    GP_CHECK(dtype == query.dtype, "attention of {} with {}", DTypeName(query.dtype), DTypeName(dtype));
  }
}

float ScoreScale(const AttentionShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// Views of one sample and head, rows of `view` being those of all samples and columns those of all heads.
template <class View>
View HeadOf(const AttentionShape& shape, const View& view, int64_t sample, int64_t head) {
  return Sub(view, sample * shape.sequence, shape.sequence, head * shape.head_dim, shape.head_dim);
}

}  // namespace

cpu::AttentionRoom& CpuBackend::RoomFor(DType dtype, int64_t head_dim) {
  if (room_ == nullptr || room_->dtype != dtype || room_->head != head_dim) {
    room_ = std::make_unique<cpu::AttentionRoom>(dtype, head_dim);
  }
  return *room_;
}

absl::Status CpuBackend::ReserveWorkspace(int64_t floats) {
  const auto bytes = floats * static_cast<int64_t>(sizeof(float));
  if (bytes > workspace_.size()) {
    workspace_ = Buffer();
    GP_ASSIGN_OR_RETURN(workspace_, allocator_.Allocate(bytes, MemoryCategory::kWorkspace));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Attention(const AttentionShape& shape, const ConstMatrixView& query,
                                   const ConstMatrixView& key, const ConstMatrixView& value, const MatrixView& out,
                                   VectorView<float> statistics) {
  CheckShape(shape, query, key, value, out, statistics.size);
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      GP_RETURN_IF_ERROR(HeadForward(shape, HeadOf(shape, query, sample, head),
                                     HeadOf(shape, key, sample, head / group),
                                     HeadOf(shape, value, sample, head / group), HeadOf(shape, out, sample, head),
                                     statistics.data + (sample * shape.heads + head) * shape.sequence));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::HeadForward(const AttentionShape& shape, const ConstMatrixView& query,
                                     const ConstMatrixView& key, const ConstMatrixView& value, const MatrixView& out,
                                     float* statistics) {
  cpu::AttentionRoom& room = RoomFor(query.dtype, shape.head_dim);
  const int64_t d = shape.head_dim;
  const float scale = ScoreScale(shape);
  for (int64_t row = 0; row < shape.sequence; row += kQueries) {
    const int64_t rows = std::min(kQueries, shape.sequence - row);
    const MatrixView sums = room.Sums(rows);
    for (int64_t first = 0; first < row + rows; first += kKeys) {
      const int64_t keys = std::min(kKeys, row + rows - first);
      const MatrixView scores = room.Scores(rows, keys);
      const MatrixView exponentials = room.Exponentials(rows, keys);
      GP_RETURN_IF_ERROR(products_->Run(Product::kNT, Sub(query, row, rows, 0, d), Sub(key, first, keys, 0, d),
                                        Addend::None(), scores));
      GP_RETURN_IF_ERROR(WithElements(query.dtype, [&]<class T>(T) {
        cpu::AttentionKernels<T>::SoftmaxBlock(ToRows<float>(ConstMatrixView(scores)), ToRows<T>(exponentials), row,
                                               first, scale, room.maxima, room.totals, ToRows<float>(sums));
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kNN, exponentials, Sub(value, first, keys, 0, d),
                                        first == 0 ? Addend::None() : Addend{.matrix = sums}, sums));
    }
    GP_RETURN_IF_ERROR(WithElements(query.dtype, [&]<class T>(T) {
      cpu::AttentionKernels<T>::EndSoftmax(ToRows<float>(ConstMatrixView(sums)), room.maxima, room.totals,
                                           ToRows<T>(Sub(out, row, rows, 0, d)), statistics + row);
    }));
  }
  return absl::OkStatus();
}

// One sample's head, with the gradients of its key and value in fp32.
struct CpuBackend::HeadOperands {
  ConstMatrixView query;  // [s, d], as the others
  ConstMatrixView key;
  ConstMatrixView value;
  ConstMatrixView out;
  ConstMatrixView grad_out;
  MatrixView grad_query;
  MatrixView grad_key;
  MatrixView grad_value;
  const float* statistics = nullptr;  // [s]
};

absl::Status CpuBackend::AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query,
                                       const ConstMatrixView& key, const ConstMatrixView& value,
                                       const ConstMatrixView& out, VectorView<const float> statistics,
                                       const ConstMatrixView& grad_out, const MatrixView& grad_query,
                                       const MatrixView& grad_key, const MatrixView& grad_value) {
  CheckShape(shape, query, key, value, out, statistics.size);
  CheckShape(shape, grad_query, grad_key, grad_value, grad_out, statistics.size);
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  // Reserves what the memory model counts for every backend; here the gradients of one key and value head need it.
  GP_RETURN_IF_ERROR(ReserveWorkspace(std::max(query.rows * query.columns, 2 * s * d) + statistics.size));
  const MatrixView key_sums = Fp32View(workspace(), s, d);
  const MatrixView value_sums = Fp32View(workspace() + s * d, s, d);
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      GP_RETURN_IF_ERROR(Zero({workspace(), 2 * s * d}));
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        GP_RETURN_IF_ERROR(HeadBackward(shape, {.query = HeadOf(shape, query, sample, head),
                                                .key = HeadOf(shape, key, sample, kv),
                                                .value = HeadOf(shape, value, sample, kv),
                                                .out = HeadOf(shape, out, sample, head),
                                                .grad_out = HeadOf(shape, grad_out, sample, head),
                                                .grad_query = HeadOf(shape, grad_query, sample, head),
                                                .grad_key = key_sums,
                                                .grad_value = value_sums,
                                                .statistics = statistics.data + (sample * shape.heads + head) * s}));
      }
      GP_RETURN_IF_ERROR(ConvertRows(threads_, key_sums, HeadOf(shape, grad_key, sample, kv)));
      GP_RETURN_IF_ERROR(ConvertRows(threads_, value_sums, HeadOf(shape, grad_value, sample, kv)));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::HeadBackward(const AttentionShape& shape, const HeadOperands& head) {
  cpu::AttentionRoom& room = RoomFor(head.query.dtype, shape.head_dim);
  const int64_t d = shape.head_dim;
  const float scale = ScoreScale(shape);
  for (int64_t row = 0; row < shape.sequence; row += kQueries) {
    const int64_t rows = std::min(kQueries, shape.sequence - row);
    const ConstMatrixView query = Sub(head.query, row, rows, 0, d);
    const ConstMatrixView grad_out = Sub(head.grad_out, row, rows, 0, d);
    const MatrixView sums = room.Sums(rows);
    GP_RETURN_IF_ERROR(WithElements(query.dtype, [&]<class T>(T) {
      cpu::AttentionKernels<T>::RowProducts(ToRows<T>(grad_out), ToRows<T>(Sub(head.out, row, rows, 0, d)),
                                            room.products);
    }));
    for (int64_t first = 0; first < row + rows; first += kKeys) {
      const int64_t keys = std::min(kKeys, row + rows - first);
      const ConstMatrixView key = Sub(head.key, first, keys, 0, d);
      const MatrixView grad_key = Sub(head.grad_key, first, keys, 0, d);
      const MatrixView grad_value = Sub(head.grad_value, first, keys, 0, d);
      const MatrixView scores = room.Scores(rows, keys);
      const MatrixView probabilities = room.Exponentials(rows, keys);
      const MatrixView gradient = room.ScoreGradient(rows, keys);
      const MatrixView rounded = room.RoundedGradient(rows, keys);
      GP_RETURN_IF_ERROR(products_->Run(Product::kNT, query, key, Addend::None(), scores));
      GP_RETURN_IF_ERROR(
          products_->Run(Product::kNT, grad_out, Sub(head.value, first, keys, 0, d), Addend::None(), gradient));
      GP_RETURN_IF_ERROR(WithElements(query.dtype, [&]<class T>(T) {
        cpu::AttentionKernels<T>::Probabilities(ToRows<float>(ConstMatrixView(scores)), ToRows<T>(probabilities), row,
                                                first, scale, head.statistics + row);
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, probabilities, grad_out, {.matrix = grad_value}, grad_value));
      GP_RETURN_IF_ERROR(WithElements(query.dtype, [&]<class T>(T) {
        cpu::AttentionKernels<T>::ScoreGradients(ToRows<T>(ConstMatrixView(probabilities)),
                                                 ToRows<float>(ConstMatrixView(gradient)), room.products, scale,
                                                 ToRows<T>(rounded));
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, rounded, query, {.matrix = grad_key}, grad_key));
      GP_RETURN_IF_ERROR(
          products_->Run(Product::kNN, rounded, key, first == 0 ? Addend::None() : Addend{.matrix = sums}, sums));
    }
    GP_RETURN_IF_ERROR(ConvertRows(threads_, sums, Sub(head.grad_query, row, rows, 0, d)));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
