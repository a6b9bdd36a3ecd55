// Parameters as ranks divide them: tensor-parallel ranks by parts of each tensor, data-parallel ones (ZeRO, arXiv
// 1910.02054) by runs of a bucket's elements. One arithmetic for the engine that holds them, the planner that counts
// them and the checkpoints that keep them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"
#include "optimizer/model/transformer.h"

namespace geopipe {

// A bucket: the tensors that a stage gathers, reduces and updates as one vector, one after the other.
enum class BucketKind : uint8_t {
  kEmbedding,
  kLayer,    // the seven products of one decoder layer
  kHead,     // lm_head, or the copy of a tied embedding that is not on the head's stage
  kVectors,  // norms and biases of all layers, and the final norm: never divided over replicas, always fp32
};

// The part of a vector's gradient that a tensor rank has before ranks add theirs up.
enum class VectorGradient : uint8_t {
  kOfRows,   // norms of the residual stream: that of its rows, where sequence parallelism divides them; else all
  kOfHeads,  // norms of heads: that of its heads
  kWhole,    // biases: all, of its part of the bias
};
// REQUIRES: tensor.is_vector().
VectorGradient VectorGradientOf(const ParameterTensor& tensor);

struct ParameterBucket {
  BucketKind kind = BucketKind::kLayer;
  int64_t layer = 0;                     // of kLayer
  bool is_head_too = false;              // an embedding whose both uses are on the stage
  std::vector<ParameterTensor> tensors;  // in model order

  int64_t elements_per_rank(int64_t tensor) const;  // of one tensor rank
};

// The buckets of a stage in the order in which its forward needs them; vectors last, in the order of VectorGradient.
// Together they hold ParameterTensors(model, range).
std::vector<ParameterBucket> ParameterBuckets(const ModelSpec& model, const LayerRange& range);

// Runs of replicas are multiples of so many elements: each begins on a boundary of 128 bytes, whatever the type, as
// vector loads, products and collectives want it.
inline constexpr int64_t kShardAlignment = 64;

// Elements of each replica's run of a vector that `data` replicas divide: replica d's begins at d times as many. The
// last ones' tails are padding.
constexpr int64_t ShardElements(int64_t elements, int64_t data) {
  const int64_t even = (elements + data - 1) / data;
  return (even + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

// Elements that a rank holds of a bucket with `elements` on each tensor rank.
struct BucketShare {
  int64_t shard = 0;   // elements of a divided part (ShardElements). Undivided: all of them
  int64_t padded = 0;  // elements of a whole part: one shard per replica
  int64_t weights = 0;
  int64_t gradients = 0;  // accumulators that stay
  int64_t states = 0;     // the optimizer's
};
// ZeRO 1 divides optimizer states, 2 also gradients, 3 also weights; vectors are never divided.
BucketShare ShareOfBucket(BucketKind kind, int64_t elements, int64_t data, int32_t zero_stage);

// Number of buckets that are whole at once. ZeRO 2: gradients that are added to, and others that are being scattered.
// ZeRO 3: weights that are being gathered besides; those that compute give their place to their gradients.
constexpr int64_t WholeBucketsAtOnce(int32_t zero_stage) { return zero_stage >= 3 ? 3 : 2; }

// Most elements of the runs in which an update takes an offloaded bucket: their master weights and moments take 48 MiB
// of the device.
inline constexpr int64_t kOffloadedRunElements = int64_t{1} << 22;
// Parameters pass between a device with memory of its own and the host through two pieces of the host's memory, of this
// size at most.
inline constexpr int64_t kParameterPieceBytes = int64_t{16} << 20;
// True when the host may keep a bucket's optimizer states: those of vectors are small and stay on the device.
constexpr bool CanBeOffloaded(BucketKind kind) { return kind != BucketKind::kVectors; }
// Number of fp32 vectors in a bucket's states: AdamW's moments, and master weights where bf16 computes.
constexpr int64_t StateVectors(BucketKind kind, Precision precision) {
  return precision == Precision::kBf16 && kind != BucketKind::kVectors ? 3 : 2;
}

// A run of a tensor rank's part of a tensor: elements [first, first + count), row by row.
struct TensorPiece {
  ParameterTensor tensor;
  int64_t tensor_ranks = 1;
  int64_t tensor_rank = 0;
  int64_t first = 0;
  int64_t count = 0;

  // Calls `run(in_tensor, in_piece, elements)` for every run of elements that are contiguous in both, in order.
  template <class Run>
  void ForEachRun(const Run& run) const;
};

template <class Run>
void TensorPiece::ForEachRun(const Run& run) const {
  const int64_t parts = tensor.parts(tensor_ranks);
  const int64_t part = tensor_rank * parts / tensor_ranks;
  if (parts == 1 || tensor.split_axis == 0) {
    run(part * (tensor.count() / parts) + first, 0, count);
    return;
  }
  const int64_t columns = tensor.shape.back();
  const int64_t own_columns = columns / parts;
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) / own_columns;
    const int64_t column = (first + done) % own_columns;
    const int64_t length = std::min(own_columns - column, count - done);
    run(row * columns + part * own_columns + column, done, length);
    done += length;
  }
}

}  // namespace geopipe
