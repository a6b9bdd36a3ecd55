#include "runtime/gpu/gpu_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// A matrix of each of some heads, `apart` elements from one to the next.
template <class View>
struct Heads {
  View first;
  int64_t apart = 0;
};
template <class View>
Heads(View, int64_t) -> Heads<View>;

// A sample's heads that are worked on together: heads first * group + member, and (first + 1) * group + member, ...
struct Turn {
  int64_t sample = 0;
  int64_t first = 0;  // of the keys' and values' heads
  int64_t count = 0;
  int64_t member = 0;  // of the query heads that share them
};

// Calls `work` for every turn, and `end` behind the last member of heads of keys and values.
template <class Work, class End>
absl::Status ForTurns(const AttentionShape& shape, const GpuAttentionSteps& steps, const Work& work, const End& end) {
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t sample = 0; sample < shape.batch; ++sample) {
    for (int64_t first = 0; first < shape.kv_heads; first += steps.heads) {
      Turn turn = {.sample = sample, .first = first, .count = std::min(steps.heads, shape.kv_heads - first)};
      for (; turn.member < group; ++turn.member) {
        GP_RETURN_IF_ERROR(work(turn));
      }
      GP_RETURN_IF_ERROR(end(turn));
    }
  }
  return absl::OkStatus();
}

template <class View>
Heads<View> QueryHeads(const AttentionShape& shape, const Turn& turn, const View& matrix) {
  const int64_t group = shape.heads / shape.kv_heads;
  const View rows = RowsOf(matrix, turn.sample * shape.sequence, shape.sequence);
  return {ColumnsOf(rows, (turn.first * group + turn.member) * shape.head_dim, shape.head_dim), group * shape.head_dim};
}

// All heads of keys or values of a turn, side by side.
template <class View>
View KeyColumns(const AttentionShape& shape, const Turn& turn, const View& matrix) {
  return ColumnsOf(RowsOf(matrix, turn.sample * shape.sequence, shape.sequence), turn.first * shape.head_dim,
                   turn.count * shape.head_dim);
}
// The same, each by itself.
template <class View>
Heads<View> SideBySide(const AttentionShape& shape, const View& columns) {
  return {ColumnsOf(columns, 0, shape.head_dim), shape.head_dim};
}

Heads<MatrixView> Scores(const AttentionShape& shape, const GpuAttentionSteps& steps, std::byte* memory, DType dtype) {
  return {
      {.data = memory, .rows = shape.sequence, .columns = shape.sequence, .stride = steps.score_stride, .dtype = dtype},
      shape.sequence * steps.score_stride};
}

// Statistics lie by sample, member and head of keys.
int64_t StatisticOf(const AttentionShape& shape, const Turn& turn) {
  const int64_t group = shape.heads / shape.kv_heads;
  return ((turn.sample * group + turn.member) * shape.kv_heads + turn.first) * shape.sequence;
}

const int32_t* StartsOf(const AttentionShape& shape, const Turn& turn) {
  return shape.starts.size == 0 ? nullptr : shape.starts.data + turn.sample * shape.sequence;
}

float ScaleOf(const AttentionShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// c = a * b, or c += a * b, of every head.
template <class A, class B>
absl::Status Multiply(GpuProducts& products, int64_t heads, Product product, const Heads<A>& a, const Heads<B>& b,
                      const Heads<MatrixView>& c, bool adds = false) {
  GpProductShape shape =
      ProductShapeOf(product, a.first, b.first, adds ? Addend{.matrix = c.first} : Addend::None(), c.first);
  shape.batch = heads;
  shape.a_batch_stride = a.apart;
  shape.b_batch_stride = b.apart;
  shape.c_batch_stride = c.apart;
  shape.d_batch_stride = c.apart;
  return products.Run(
      shape,
      {.a = a.first.data, .b = b.first.data, .c = adds ? c.first.data : nullptr, .row = nullptr, .d = c.first.data});
}

// Workspace of a turn of the backward pass.
struct BackwardRooms {
  Heads<MatrixView> scores;
  Heads<MatrixView> grads;  // of the probabilities
  Heads<MatrixView> probabilities;
  Heads<MatrixView> grad_scores;
  std::byte* key_sums = nullptr;
  std::byte* value_sums = nullptr;
};

BackwardRooms RoomsOf(const AttentionShape& shape, const GpuAttentionSteps& steps, DType dtype, std::byte* memory) {
  const auto take = [&](int64_t bytes) { return std::exchange(memory, memory + bytes); };
  BackwardRooms rooms;
  rooms.scores = Scores(shape, steps, take(steps.heads * steps.score_bytes), DType::kFp32);
  rooms.grads = Scores(shape, steps, take(steps.heads * steps.score_bytes), DType::kFp32);
  const bool rounds = steps.rounded_bytes > 0;
  const int64_t bytes = steps.heads * steps.rounded_bytes;
  rooms.probabilities = rounds ? Scores(shape, steps, take(bytes), dtype) : rooms.scores;
  rooms.grad_scores = rounds ? Scores(shape, steps, take(bytes), dtype) : rooms.grads;
  rooms.key_sums = take(steps.sums_bytes);
  rooms.value_sums = take(steps.sums_bytes);
  return rooms;
}

// The place where a turn's gradients of keys, or of values, are added up: `room`, or the gradient itself.
MatrixView SumsOf(const AttentionShape& shape, const GpuAttentionSteps& steps, const Turn& turn, std::byte* room,
                  const MatrixView& gradient) {
  const int64_t columns = turn.count * shape.head_dim;
  return steps.sums_bytes == 0
             ? KeyColumns(shape, turn, gradient)
             : MatrixView{.data = room, .rows = shape.sequence, .columns = columns, .stride = columns};
}

}  // namespace

GpuAttentionSteps StepsOf(const AttentionShape& shape, DType dtype) {
  return GpuAttentionStepsOf(shape.sequence, shape.heads, shape.kv_heads, shape.head_dim, ByteSize(dtype));
}

absl::Status GpuAttention::Forward(const AttentionShape& shape, const ConstMatrixView& query,
                                   const ConstMatrixView& key, const ConstMatrixView& value, const MatrixView& out,
                                   VectorView<float> statistics) {
  const GpuAttentionSteps steps = StepsOf(shape, query.dtype);
  GP_ASSIGN_OR_RETURN(std::byte * memory, workspace_.Take(steps.forward_bytes()));
  const Heads<MatrixView> scores = Scores(shape, steps, memory, DType::kFp32);
  std::byte* rounded = steps.rounded_bytes == 0 ? memory : memory + steps.heads * steps.score_bytes;
  const Heads<MatrixView> probabilities = Scores(shape, steps, rounded, query.dtype);
  const auto work = [&](const Turn& turn) -> absl::Status {
    GP_RETURN_IF_ERROR(Multiply(products_, turn.count, Product::kNT, QueryHeads(shape, turn, query),
                                SideBySide(shape, KeyColumns(shape, turn, key)), scores));
    if (!dry_) {
      const GpCausalSoftmax softmax = {.dtype = PortTypeOf(query.dtype),
                                       .matrices = turn.count,
                                       .heads = turn.count,
                                       .sequence = shape.sequence,
                                       .starts = StartsOf(shape, turn),
                                       .scale = ScaleOf(shape),
                                       .scores = reinterpret_cast<const float*>(scores.first.data),
                                       .scores_stride = steps.score_stride,
                                       .probabilities = probabilities.first.data,
                                       .probabilities_stride = steps.score_stride,
                                       .statistics = statistics.data + StatisticOf(shape, turn)};
      GP_RETURN_IF_ERROR(device_.Launch(device_.port().kernels.causal_softmax, softmax, Queue::kCompute));
    }
    return Multiply(products_, turn.count, Product::kNN, probabilities,
                    SideBySide(shape, KeyColumns(shape, turn, value)), QueryHeads(shape, turn, out));
  };
  return ForTurns(shape, steps, work, [](const Turn&) { return absl::OkStatus(); });
}

absl::Status GpuAttention::Backward(const AttentionShape& shape, const ConstMatrixView& query,
                                    const ConstMatrixView& key, const ConstMatrixView& value,
                                    VectorView<const float> statistics, const ConstMatrixView& grad_out,
                                    const MatrixView& grad_query, const MatrixView& grad_key,
                                    const MatrixView& grad_value) {
  const DType dtype = query.dtype;
  const GpuAttentionSteps steps = StepsOf(shape, dtype);
  GP_ASSIGN_OR_RETURN(std::byte * memory, workspace_.Take(steps.backward_bytes()));
  const BackwardRooms rooms = RoomsOf(shape, steps, dtype, memory);
  const auto work = [&](const Turn& turn) -> absl::Status {
    const auto multiply = [&](Product product, const auto& a, const auto& b, const Heads<MatrixView>& c, bool adds) {
      return Multiply(products_, turn.count, product, a, b, c, adds);
    };
    const Heads queries = QueryHeads(shape, turn, query);
    const Heads grad_outs = QueryHeads(shape, turn, grad_out);
    const Heads keys = SideBySide(shape, KeyColumns(shape, turn, key));
    const Heads values = SideBySide(shape, KeyColumns(shape, turn, value));
    GP_RETURN_IF_ERROR(multiply(Product::kNT, queries, keys, rooms.scores, false));
    GP_RETURN_IF_ERROR(multiply(Product::kNT, grad_outs, values, rooms.grads, false));
    if (!dry_) {
      const GpCausalSoftmaxGrad softmax = {.dtype = PortTypeOf(dtype),
                                           .matrices = turn.count,
                                           .heads = turn.count,
                                           .sequence = shape.sequence,
                                           .starts = StartsOf(shape, turn),
                                           .scale = ScaleOf(shape),
                                           .scores = reinterpret_cast<const float*>(rooms.scores.first.data),
                                           .scores_stride = steps.score_stride,
                                           .statistics = statistics.data + StatisticOf(shape, turn),
                                           .grad_probabilities = reinterpret_cast<const float*>(rooms.grads.first.data),
                                           .grad_probabilities_stride = steps.score_stride,
                                           .probabilities = rooms.probabilities.first.data,
                                           .probabilities_stride = steps.score_stride,
                                           .grad_scores = rooms.grad_scores.first.data,
                                           .grad_scores_stride = steps.score_stride};
      GP_RETURN_IF_ERROR(device_.Launch(device_.port().kernels.causal_softmax_grad, softmax, Queue::kCompute));
    }
    const bool adds = turn.member > 0;
    GP_RETURN_IF_ERROR(multiply(Product::kTN, rooms.probabilities, grad_outs,
                                SideBySide(shape, SumsOf(shape, steps, turn, rooms.value_sums, grad_value)), adds));
    GP_RETURN_IF_ERROR(multiply(Product::kTN, rooms.grad_scores, queries,
                                SideBySide(shape, SumsOf(shape, steps, turn, rooms.key_sums, grad_key)), adds));
    return multiply(Product::kNN, rooms.grad_scores, keys, QueryHeads(shape, turn, grad_query), false);
  };
  const auto round = [&](const Turn& turn, std::byte* room, const MatrixView& gradient) -> absl::Status {
    const MatrixView to = KeyColumns(shape, turn, gradient);
    const GpConvert convert = {.from_type = kGpFp32,
                               .to_type = PortTypeOf(dtype),
                               .rows = to.rows,
                               .columns = to.columns,
                               .from = room,
                               .from_stride = to.columns,
                               .to = to.data,
                               .to_stride = to.stride};
    return device_.Launch(device_.port().kernels.convert, convert, Queue::kCompute);
  };
  const auto end = [&](const Turn& turn) -> absl::Status {
    if (steps.sums_bytes == 0 || dry_) {
      return absl::OkStatus();
    }
    GP_RETURN_IF_ERROR(round(turn, rooms.key_sums, grad_key));
    return round(turn, rooms.value_sums, grad_value);
  };
  return ForTurns(shape, steps, work, end);
}

}  // namespace geopipe
