// Causal grouped-query attention of the cpu backend: oneDNN products around the softmax kernels, one head at a time.
// Query rows go in blocks, each against blocks of the keys that it can see (arXiv 2205.14135), so that scores never lie
// in memory as a whole and about half of them are never made.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_tile_attention.h"
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
  GP_CHECK(shape.starts.size == 0 || shape.starts.size == tokens, "{} starts of {} tokens", shape.starts.size, tokens);
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

// The starts of a sample, or null.
const int32_t* StartsOf(const AttentionShape& shape, int64_t sample) {
  return shape.starts.size == 0 ? nullptr : shape.starts.data + sample * shape.sequence;
}

// The first key that any of the queries from `row` on sees; `starts` are the sample's.
int64_t FirstSeen(const int32_t* starts, int64_t row) { return starts == nullptr ? 0 : starts[row]; }

const int32_t* StartsFrom(const int32_t* starts, int64_t row) { return starts == nullptr ? nullptr : starts + row; }

}  // namespace

// Operands of a gradient: of all samples and heads, or of one, whose gradients of key and value then are in fp32.
struct CpuBackend::HeadOperands {
  ConstMatrixView query;  // [tokens, heads * d] or [s, d]
  ConstMatrixView key;
  ConstMatrixView value;
  ConstMatrixView out;
  ConstMatrixView grad_out;
  MatrixView grad_query;
  MatrixView grad_key;
  MatrixView grad_value;
  const float* statistics = nullptr;  // [s]
  const int32_t* starts = nullptr;    // [s], of one sample; or null
};

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
#if defined(__x86_64__)
  if (TilesFit(query.dtype, shape.head_dim)) {
    TileForward(shape, query, key, value, out, statistics.data);
    return absl::OkStatus();
  }
#endif
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      GP_RETURN_IF_ERROR(HeadForward(
          shape, HeadOf(shape, query, sample, head), HeadOf(shape, key, sample, head / group),
          HeadOf(shape, value, sample, head / group), StartsOf(shape, sample), HeadOf(shape, out, sample, head),
          statistics.data + (sample * shape.heads + head) * shape.sequence));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::HeadForward(const AttentionShape& shape, const ConstMatrixView& query,
                                     const ConstMatrixView& key, const ConstMatrixView& value, const int32_t* starts,
                                     const MatrixView& out, float* statistics) {
  cpu::AttentionRoom& room = RoomFor(query.dtype, shape.head_dim);
  const int64_t d = shape.head_dim;
  const float scale = ScoreScale(shape);
  for (int64_t row = 0; row < shape.sequence; row += kQueries) {
    const int64_t rows = std::min(kQueries, shape.sequence - row);
    const MatrixView sums = room.Sums(rows);
    std::fill_n(room.totals, rows, 0.0F);
    const int64_t first_block = FirstSeen(starts, row) / kKeys * kKeys;
    for (int64_t first = first_block; first < row + rows; first += kKeys) {
      const int64_t keys = std::min(kKeys, row + rows - first);
      const MatrixView scores = room.Scores(rows, keys);
      const MatrixView exponentials = room.Exponentials(rows, keys);
      GP_RETURN_IF_ERROR(products_->Run(Product::kNT, Sub(query, row, rows, 0, d), Sub(key, first, keys, 0, d),
                                        Addend::None(), scores));
      GP_RETURN_IF_ERROR(Launch(query.dtype, [&]<class T, class W>(T, W) {
        cpu::AttentionKernels<T, W>::SoftmaxBlock(ToRows<float>(ConstMatrixView(scores)), ToRows<T>(exponentials), row,
                                                  first, StartsFrom(starts, row), scale, room.maxima, room.totals,
                                                  ToRows<float>(sums));
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kNN, exponentials, Sub(value, first, keys, 0, d),
                                        first == first_block ? Addend::None() : Addend{.matrix = sums}, sums));
    }
    GP_RETURN_IF_ERROR(Launch(query.dtype, [&]<class T, class W>(T, W) {
      cpu::AttentionKernels<T, W>::EndSoftmax(ToRows<float>(ConstMatrixView(sums)), room.maxima, room.totals,
                                              ToRows<T>(Sub(out, row, rows, 0, d)), statistics + row);
    }));
  }
  return absl::OkStatus();
}

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
#if defined(__x86_64__)
  if (TilesFit(query.dtype, d)) {
    TileBackward(shape, {.query = query,
                         .key = key,
                         .value = value,
                         .out = out,
                         .grad_out = grad_out,
                         .grad_query = grad_query,
                         .grad_key = grad_key,
                         .grad_value = grad_value,
                         .statistics = statistics.data});
    return absl::OkStatus();
  }
#endif
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
                                                .statistics = statistics.data + (sample * shape.heads + head) * s,
                                                .starts = StartsOf(shape, sample)}));
      }
      GP_RETURN_IF_ERROR(Convert(key_sums, HeadOf(shape, grad_key, sample, kv)));
      GP_RETURN_IF_ERROR(Convert(value_sums, HeadOf(shape, grad_value, sample, kv)));
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
    GP_RETURN_IF_ERROR(Launch(query.dtype, [&]<class T, class W>(T, W) {
      cpu::AttentionKernels<T, W>::RowProducts(ToRows<T>(grad_out), ToRows<T>(Sub(head.out, row, rows, 0, d)),
                                               room.products);
    }));
    const int64_t first_block = FirstSeen(head.starts, row) / kKeys * kKeys;
    for (int64_t first = first_block; first < row + rows; first += kKeys) {
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
      GP_RETURN_IF_ERROR(Launch(query.dtype, [&]<class T, class W>(T, W) {
        cpu::AttentionKernels<T, W>::Probabilities(ToRows<float>(ConstMatrixView(scores)), ToRows<T>(probabilities),
                                                   row, first, StartsFrom(head.starts, row), scale,
                                                   head.statistics + row);
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, probabilities, grad_out, {.matrix = grad_value}, grad_value));
      GP_RETURN_IF_ERROR(Launch(query.dtype, [&]<class T, class W>(T, W) {
        cpu::AttentionKernels<T, W>::ScoreGradients(ToRows<T>(ConstMatrixView(probabilities)),
                                                    ToRows<float>(ConstMatrixView(gradient)), room.products, scale,
                                                    ToRows<T>(rounded));
      }));
      GP_RETURN_IF_ERROR(products_->Run(Product::kTN, rounded, query, {.matrix = grad_key}, grad_key));
      GP_RETURN_IF_ERROR(products_->Run(Product::kNN, rounded, key,
                                        first == first_block ? Addend::None() : Addend{.matrix = sums}, sums));
    }
    GP_RETURN_IF_ERROR(Convert(sums, Sub(head.grad_query, row, rows, 0, d)));
  }
  return absl::OkStatus();
}

#if defined(__x86_64__)
bool CpuBackend::TilesFit(DType dtype, int64_t head_dim) const {
  return dtype == DType::kBf16 && cpu::TileAttention::Fits(head_dim) && products_->UsesAmx();
}

std::byte* CpuBackend::TileRooms(int64_t parts, int64_t head_dim) {
  constexpr size_t kAlignment = 64;
  const auto bytes = static_cast<size_t>(parts * cpu::TileAttention::RoomBytes(head_dim));
  tile_rooms_.resize(std::max(tile_rooms_.size(), bytes + kAlignment));
  void* first = tile_rooms_.data();
  size_t room = tile_rooms_.size();
  return static_cast<std::byte*>(std::align(kAlignment, bytes, first, room));
}

void CpuBackend::TileForward(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                             const ConstMatrixView& value, const MatrixView& out, float* statistics) {
  const int64_t group = shape.heads / shape.kv_heads;
  std::byte* const rooms = TileRooms(threads_, shape.head_dim);
  if (dry_) {
    return;
  }
  cpu::ParallelFor(threads_, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / shape.heads;
      const int64_t head = i % shape.heads;
      cpu::TileAttention::Forward({.query = ToRows<BFloat16>(HeadOf(shape, query, sample, head)),
                                   .key = ToRows<BFloat16>(HeadOf(shape, key, sample, head / group)),
                                   .value = ToRows<BFloat16>(HeadOf(shape, value, sample, head / group)),
                                   .starts = StartsOf(shape, sample),
                                   .scale = ScoreScale(shape)},
                                  ToRows<BFloat16>(HeadOf(shape, out, sample, head)), statistics + i * shape.sequence,
                                  rooms + omp_get_thread_num() * cpu::TileAttention::RoomBytes(shape.head_dim));
    }
  });
}

void CpuBackend::TileBackward(const AttentionShape& shape, const HeadOperands& all) {
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  // Counts the threads that have room for the sums of a key and value head, and may have work.
  const int64_t sums = 2 * s * d;
  const int64_t parts = std::min({int64_t{threads_}, shape.batch * shape.kv_heads,
                                  workspace_.size() / static_cast<int64_t>(sizeof(float)) / sums});
  std::byte* const rooms = TileRooms(parts, d);
  if (dry_) {
    return;
  }
  cpu::ParallelFor(static_cast<int>(parts), shape.batch * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const int64_t thread = omp_get_thread_num();
    const MatrixView key_sums = Fp32View(workspace() + thread * sums, s, d);
    const MatrixView value_sums = Fp32View(workspace() + thread * sums + s * d, s, d);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / shape.kv_heads;
      const int64_t kv = i % shape.kv_heads;
      std::memset(key_sums.data, 0, static_cast<size_t>(sums) * sizeof(float));
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        cpu::TileAttention::Backward(
            {.query = ToRows<BFloat16>(HeadOf(shape, all.query, sample, head)),
             .key = ToRows<BFloat16>(HeadOf(shape, all.key, sample, kv)),
             .value = ToRows<BFloat16>(HeadOf(shape, all.value, sample, kv)),
             .starts = StartsOf(shape, sample),
             .scale = ScoreScale(shape)},
            ToRows<BFloat16>(HeadOf(shape, all.out, sample, head)), all.statistics + (sample * shape.heads + head) * s,
            ToRows<BFloat16>(HeadOf(shape, all.grad_out, sample, head)),
            ToRows<BFloat16>(HeadOf(shape, all.grad_query, sample, head)), reinterpret_cast<float*>(key_sums.data),
            reinterpret_cast<float*>(value_sums.data), rooms + thread * cpu::TileAttention::RoomBytes(d));
      }
      WithWidth([&]<class W>(W) {
        cpu::VectorKernels<W>::template Convert<float, BFloat16>(
            1, ToRows<float>(ConstMatrixView(key_sums)), ToRows<BFloat16>(HeadOf(shape, all.grad_key, sample, kv)));
        cpu::VectorKernels<W>::template Convert<float, BFloat16>(
            1, ToRows<float>(ConstMatrixView(value_sums)), ToRows<BFloat16>(HeadOf(shape, all.grad_value, sample, kv)));
      });
    }
  });
}
#endif

}  // namespace geopipe
