// Causal grouped-query attention of the cpu backend: one head at a time on each thread, by the kernel that suits its
// type and size. Query rows go in blocks, each against blocks of the keys that it can see (arXiv 2205.14135), so that
// scores never lie in memory as a whole and about half of them are never made.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_backend.h"
#include "runtime/backend/cpu_head_attention.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe {
namespace {

// Views of one sample and head, rows of `view` being those of all samples and columns those of all heads.
template <class View>
View HeadOf(const AttentionShape& shape, const View& view, int64_t sample, int64_t head) {
  return Sub(view, sample * shape.sequence, shape.sequence, head * shape.head_dim, shape.head_dim);
}

template <class T>
cpu::AttentionHead<T> OperandsOf(const AttentionShape& shape, const ConstMatrixView& query, const ConstMatrixView& key,
                                 const ConstMatrixView& value, int64_t sample, int64_t head) {
  const int64_t kv = head / (shape.heads / shape.kv_heads);
  return {.query = ToRows<T>(HeadOf(shape, query, sample, head)),
          .key = ToRows<T>(HeadOf(shape, key, sample, kv)),
          .value = ToRows<T>(HeadOf(shape, value, sample, kv)),
          .starts = shape.starts.size == 0 ? nullptr : shape.starts.data + sample * shape.sequence,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))};
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

cpu::RoomLine* CpuBackend::HeadRooms(int64_t lines) {
  head_rooms_.resize(std::max(head_rooms_.size(), static_cast<size_t>(lines)));
  return head_rooms_.data();
}

template <class F>
absl::Status CpuBackend::WithHeadKernel(DType dtype, int64_t head_dim, const F& f) const {
#if defined(__x86_64__)
  if (dtype == DType::kBf16 && cpu::TileAttention::Fits(head_dim) && products_->UsesAmx()) {
    f(BFloat16(), cpu::TileAttention());
    return absl::OkStatus();
  }
#endif
  return WithElements(dtype, [&]<class T, class W>(T, W) { f(T(), cpu::BlockAttention<T, W>()); });
}

absl::Status CpuBackend::Attention(const AttentionShape& shape, const ConstMatrixView& query,
                                   const ConstMatrixView& key, const ConstMatrixView& value, const MatrixView& out,
                                   VectorView<float> statistics) {
  CheckAttention(shape, query, key, value, out, statistics.size);
  return WithHeadKernel(query.dtype, shape.head_dim, [&]<class T, class Kernel>(T, Kernel) {
    const int64_t room_lines = Kernel::RoomLines(shape.head_dim);
    cpu::RoomLine* const rooms = HeadRooms(threads_ * room_lines);
    if (dry_) {
      return;
    }
    cpu::ParallelFor(threads_, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / shape.heads;
        const int64_t head = i % shape.heads;
        Kernel::Forward(OperandsOf<T>(shape, query, key, value, sample, head),
                        ToRows<T>(HeadOf(shape, out, sample, head)), statistics.data + i * shape.sequence,
                        rooms + omp_get_thread_num() * room_lines);
      }
    });
  });
}

absl::Status CpuBackend::AttentionGrad(const AttentionShape& shape, const ConstMatrixView& query,
                                       const ConstMatrixView& key, const ConstMatrixView& value,
                                       const ConstMatrixView& out, VectorView<const float> statistics,
                                       const ConstMatrixView& grad_out, const MatrixView& grad_query,
                                       const MatrixView& grad_key, const MatrixView& grad_value) {
  CheckAttention(shape, query, key, value, out, statistics.size);
  CheckAttention(shape, grad_query, grad_key, grad_value, grad_out, statistics.size);
  const int64_t s = shape.sequence;
  const int64_t d = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t sums = 2 * s * d;  // of a head of keys and values
  // Reserves what the memory model counts for every backend; here as many threads work as it has room for their sums.
  GP_RETURN_IF_ERROR(ReserveWorkspace(std::max(query.rows * query.columns, sums) + statistics.size));
  const int64_t parts = std::min({int64_t{threads_}, shape.batch * shape.kv_heads,
                                  workspace_.size() / static_cast<int64_t>(sizeof(float)) / sums});
  return WithHeadKernel(query.dtype, d, [&]<class T, class Kernel>(T, Kernel) {
    const int64_t room_lines = Kernel::RoomLines(d);
    cpu::RoomLine* const rooms = HeadRooms(parts * room_lines);
    if (dry_) {
      return;
    }
    cpu::ParallelFor(static_cast<int>(parts), shape.batch * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
      const int64_t thread = omp_get_thread_num();
      float* const key_sums = workspace() + thread * sums;
      float* const value_sums = key_sums + s * d;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / shape.kv_heads;
        const int64_t kv = i % shape.kv_heads;
        std::memset(key_sums, 0, static_cast<size_t>(sums) * sizeof(float));
        for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
          Kernel::Backward(OperandsOf<T>(shape, query, key, value, sample, head),
                           {.out = ToRows<T>(HeadOf(shape, out, sample, head)),
                            .statistics = statistics.data + (sample * shape.heads + head) * s,
                            .grad_out = ToRows<T>(HeadOf(shape, grad_out, sample, head)),
                            .grad_query = ToRows<T>(HeadOf(shape, grad_query, sample, head)),
                            .grad_key = key_sums,
                            .grad_value = value_sums},
                           rooms + thread * room_lines);
        }
        WithWidth([&]<class W>(W) {
          using Kernels = cpu::VectorKernels<W>;
          Kernels::template Convert<float, T>(1, {key_sums, s, d, d}, ToRows<T>(HeadOf(shape, grad_key, sample, kv)));
          Kernels::template Convert<float, T>(1, {value_sums, s, d, d},
                                              ToRows<T>(HeadOf(shape, grad_value, sample, kv)));
        });
      }
    });
  });
}

}  // namespace geopipe
