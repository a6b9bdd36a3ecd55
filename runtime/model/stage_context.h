// State that all parts of a stage share, and the rules by which tensor ranks divide rows and sums.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <algorithm>
#include <cstdint>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/model_spec.h"
#include "runtime/backend/backend.h"
#include "runtime/model/parameters.h"
#include "runtime/model/rank_groups.h"

namespace geopipe {

struct StageContext {
  ModelSpec model;
  ParameterSharding sharding;
  int64_t batch = 0;     // samples of a micro-batch
  int64_t sequence = 0;  // tokens of a sample
  Recompute recompute = Recompute::kNone;
  Allocator* allocator = nullptr;
  Backend* backend = nullptr;
  RankGroups groups;   // of the epoch
  Tensor rope_cosine;  // [sequence, head_dim / 2], as rope_sine
  Tensor rope_sine;

  int64_t tokens() const { return batch * sequence; }
  int64_t hidden() const { return model.hidden_size; }
  int64_t query_width() const { return model.query_width() / sharding.tensor; }
  int64_t kv_width() const { return model.key_value_width_per_rank(sharding.tensor); }
  int64_t intermediate() const { return model.intermediate_size / sharding.tensor; }
  int64_t vocabulary() const { return model.vocab_rows() / sharding.tensor; }  // rows, with those of padding
  int64_t first_class() const { return sharding.tensor_rank * vocabulary(); }
  // Rows of this rank that stand for tokens: its first ones.
  int64_t classes() const { return std::clamp<int64_t>(model.vocab_size - first_class(), 0, vocabulary()); }
  bool divides_rows() const { return sharding.sequence_parallel && sharding.tensor > 1; }
  int64_t region_rows() const { return divides_rows() ? tokens() / sharding.tensor : tokens(); }
  bool cuts_messages() const { return sharding.tensor > 1 && !sharding.sequence_parallel; }
  int64_t message_elements() const { return tokens() * hidden() / sharding.tensor; }
  RopeTable rope() const { return {rope_cosine, rope_sine}; }
  AttentionShape attention(VectorView<const int32_t> starts) const {
    return {
        batch, sequence, model.num_attention_heads / sharding.tensor, kv_width() / model.head_dim(), model.head_dim(),
        starts};
  }

  // Type of activations, messages and their gradients.
  DType dtype() const { return sharding.precision == Precision::kBf16 ? DType::kBf16 : DType::kFp32; }

  // An uninitialised tensor of all n rows, or of the region's; of dtype(), or of fp32 numbers, one for each row.
  absl::StatusOr<Tensor> NewRows(int64_t columns, MemoryCategory category) const;
  absl::StatusOr<Tensor> NewRegion(int64_t columns, MemoryCategory category) const;
  absl::StatusOr<Tensor> NewStatistics(MemoryCategory category) const;

  // The region's rows of a tensor of all n rows.
  MatrixView RegionOf(const Tensor& rows) const;
  // All rows of a region [.., h]: `region` itself where it has them all, else gathered in new memory of `category`.
  absl::StatusOr<Tensor> Gathered(Tensor region, MemoryCategory category) const;
  // A view of all rows of a region. `room` keeps them, as workspace, if they had to be gathered, and is empty
  // otherwise.
  absl::StatusOr<ConstMatrixView> Whole(const Tensor& region, Tensor& room) const;
  // Adds up [n, h] over the tensor ranks, in place: afterwards the region's rows hold the sum.
  absl::Status SumOverRanks(const Tensor& partial) const;
  // Adds up the same into a region of `category`, and takes the operand.
  absl::StatusOr<Tensor> SumToRegion(Tensor partial, MemoryCategory category) const;
  // Reduces any vector over the tensor ranks, in place.
  absl::Status AllReduce(ReduceOp op, const Tensor& tensor) const;

  // A new region = residual + x * W^T + bias (may be null), W's columns being this rank's part of the product's inputs.
  absl::StatusOr<Tensor> AddProduct(const Tensor& residual, const Tensor& x, const Parameter& weight,
                                    const Parameter* bias, MemoryCategory category) const;

  // The two functions convert between a region and the part of it that the rank sends or has received.
  absl::StatusOr<Tensor> ToMessage(Tensor region) const;
  absl::StatusOr<Tensor> FromMessage(Tensor message, MemoryCategory category) const;
};

}  // namespace geopipe
