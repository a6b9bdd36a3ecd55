// The parameters of one stage on one rank: weights, gradients and AdamW's states, in buckets that replicas gather,
// reduce and update as one vector, and every tensor under its Hugging Face name.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/parameter_buckets.h"
#include "runtime/backend/backend.h"
#include "runtime/model/rank_groups.h"
#include "runtime/model/shared_rooms.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// The rank's place among those that divide the parameters of its stages.
struct ParameterSharding {
  int64_t tensor = 1;
  int64_t tensor_rank = 0;
  int64_t data = 1;
  int64_t data_rank = 0;
  int32_t zero_stage = 0;
  bool sequence_parallel = false;  // each tensor rank has the gradients of the residual stream's norms of its rows
  Precision precision = Precision::kFp32;
  bool offloads_optimizer = false;  // the host keeps AdamW's states, but those of vectors

  friend bool operator==(const ParameterSharding&, const ParameterSharding&) = default;
};

// The pieces of a bucket's tensors that the rank updates, in the bucket's order; pieces without elements where other
// replicas update the whole tensor.
std::vector<TensorPiece> PiecesOf(const ParameterBucket& bucket, const ParameterSharding& sharding);

struct Parameter {
  ParameterTensor spec;  // the whole tensor
  // The part of this tensor rank, for kernels; empty while a bucket is divided (ZeRO 3; gradients: 2 and 3).
  Tensor value;
  Tensor gradient;
  // The piece of the part that this rank updates, with its fp32 weights and AdamW's moments, in the part's shape if the
  // piece is all of it. Empty where other replicas update all of it.
  TensorPiece piece;
  Tensor master;
  Tensor first_moment;
  Tensor second_moment;
};

// Owns the parameters of a stage. Parameters don't move while the set lives. Executor thread only.
//
// Sums are the same bits whatever the ZeRO stage: gradients are added over replicas in the order of these, 0 and 1 once
// an iteration, 2 and 3 once a micro-batch; sums of squares run over the replica's run of each bucket.
class ParameterSet final : public WeightSource {
 public:
  // Weights and moments from `weights` (zero where it has no moments), gradients zero. Weights of divided states become
  // whole when UseGroups gathers them. `rooms`: for ZeRO 2 and 3 and for states that the host keeps, grown as needed;
  // may be null for others. The references outlive the set. Errors: the allocator's and those of `weights`.
  static absl::StatusOr<ParameterSet> Create(const std::vector<ParameterBucket>& buckets,
                                             const ParameterSharding& sharding, WeightSource& weights,
                                             Allocator& allocator, Backend& backend, SharedRooms* rooms = nullptr);

  // nullptr when this stage does not hold it.
  Parameter* Find(std::string_view name);
  std::span<Parameter> all() { return parameters_; }

  // The current value, for export and checkpoints; waits for the device. NotFound when this stage does not hold it.
  // REQUIRES: the piece is the whole tensor.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

  // Divides and reduces through these groups from now on; with ZeRO 1 and 2 gathers the whole weights. All ranks of a
  // group call it together. Errors are the communicators'.
  absl::Status UseGroups(const RankGroups& groups);

  // Forgets the groups, whose operations are over; UseGroups comes before the next use.
  void LeaveGroups() { groups_ = {}; }

  // Copies the states of the replica `giver` to the replicas that receive; all replicas call it together, after
  // UseGroups and before an iteration. The states of the others do not change. Errors: the communicator's; a receiver's
  // states are then undefined. REQUIRES: there are replicas, and states are not divided (ZeRO 0).
  absl::Status ShareStates(int32_t giver, bool receives);

  // --- One iteration; all replicas make the same calls in the same order ---

  // Gradients count as zero: kernels that add to them find zeros, and the others are told to write them.
  absl::Status BeginIteration();

  // Makes the values of the bucket available to kernels until another bucket needs the room; `next`, if any, is
  // gathered meanwhile.
  absl::Status Use(size_t bucket, std::optional<size_t> next);

  // Ends forwards that no backward follows: rooms hold no weights any more.
  absl::Status EndForwards();

  // A tied embedding whose both uses are on this stage has a second accumulator, for the head's.
  enum class Accumulator : uint8_t { kOwn, kTiedHead };
  // Provides the accumulator of a bucket's gradients for one micro-batch. Returns true when kernels add to what it
  // holds; false when it holds nothing, so that products write all elements of their tensors (rows of padding stay
  // zero).
  absl::StatusOr<bool> BeginGradients(size_t bucket, Accumulator which = Accumulator::kOwn);
  const Tensor& tied_head_gradient() const { return tied_head_gradient_; }
  // Ends the additions; after the `last` micro-batch their sum over the replicas is under way.
  absl::Status EndGradients(size_t bucket, bool last, Accumulator which = Accumulator::kOwn);
  // Completes all sums: of the two accumulators of a tied embedding, of vectors over all ranks that share them, over
  // replicas. Kernels enqueued from now on find them.
  absl::Status FinishGradients();

  // The part of a bucket's gradient that this rank updates (with ZeRO 0 the whole bucket, on all replicas).
  Tensor GradientShare(size_t bucket) const;
  // Sets sums[i], i being the place in all(), to this rank's part of the sum of squares of the gradient. Over all
  // tensor ranks and replicas the parts add up to the whole tensor's.
  absl::Status SumSquares(VectorView<double> sums);

  // Applies AdamW; whole weights of divided states are being gathered when it returns.
  absl::Status Update(const TrainingSpec& training, int64_t iteration, std::optional<double> grad_norm);

  // Waits until nothing is under way any more. REQUIRES: no communicator has anything to wait for: it has failed, or
  // all ranks abandon the iteration.
  void Abandon();

  // The bucket of a kind (and layer). REQUIRES: the stage has it.
  size_t BucketOf(BucketKind kind, int64_t layer = 0) const;

 private:
  struct Bucket {
    BucketKind kind = BucketKind::kLayer;
    int64_t layer = 0;
    bool is_head_too = false;
    size_t first_parameter = 0;
    size_t parameters = 0;
    int64_t elements = 0;
    BucketShare share;
    Tensor values;               // [share.weights], of the type that computes
    Tensor masters;              // [share.states] fp32, where that is another type
    Tensor gradients;            // [share.gradients]
    Tensor tied_head_gradients;  // the second accumulator; else empty
    Tensor first_moments;  // [share.states], as second_moments; in the host's memory, as masters, where it keeps them
    Tensor second_moments;
    std::vector<Completion> under_way;             // whole weights being gathered, or gradients reduced
    WholeBuckets::Room* weights_room = nullptr;    // where the weights are whole (ZeRO 3)
    WholeBuckets::Room* gradients_room = nullptr;  // where gradients are being added (ZeRO 2 and 3)
    bool is_fresh = false;                         // no micro-batch has written the gradients
    bool is_tied_head_fresh = false;               // nor those of the second accumulator
  };

  ParameterSet(const ParameterSharding& sharding, Allocator& allocator, Backend& backend, SharedRooms* rooms)
      : sharding_(sharding), allocator_(&allocator), backend_(&backend), rooms_(rooms) {}

  absl::Status AddBucket(const ParameterBucket& bucket);
  absl::Status Allocate(Bucket& bucket);
  void AddParameter(Bucket& bucket, const TensorPiece& piece, int64_t offset);
  absl::Status Fill(Parameter& parameter, WeightSource& weights);
  // Rounds the bucket's masters into the weights that kernels read.
  absl::Status RoundMasters(const Bucket& bucket);

  // A run of the part of a bucket that the rank updates, on the device.
  struct StateRun {
    int64_t first = 0;
    int64_t count = 0;
    Tensor master;
    Tensor first_moment;
    Tensor second_moment;
  };
  enum class RunUse : uint8_t { kRead, kWrite, kUpdate };  // whether the run's contents are read, written, or both
  // Calls `use` with all of the bucket at once, or run by run with the states that the host keeps. Errors: those of
  // `use` and of the device.
  absl::Status ForEachRun(const Bucket& bucket, RunUse how, absl::FunctionRef<absl::Status(const StateRun&)> use);
  bool Offloaded(const Bucket& bucket) const { return sharding_.offloads_optimizer && CanBeOffloaded(bucket.kind); }

  bool Divided(const Bucket& bucket) const {
    return sharding_.data > 1 && sharding_.zero_stage >= 1 && bucket.kind != BucketKind::kVectors;
  }
  std::span<Parameter> ParametersOf(const Bucket& bucket) {
    return std::span(parameters_).subspan(bucket.first_parameter, bucket.parameters);
  }
  // Offset at which the replica's run of whole weights or gradients begins.
  int64_t OwnOffset(const Bucket& bucket) const {
    return Divided(bucket) ? sharding_.data_rank * bucket.share.shard : 0;
  }
  void SetViews(Bucket& bucket, Tensor Parameter::*view, const Tensor& whole);
  void DropViews(Bucket& bucket, Tensor Parameter::*view);
  absl::Status Gather(Bucket& bucket, const Tensor& whole);
  absl::Status GatherInRoom(Bucket& bucket);
  absl::Status Await(Bucket& bucket);
  absl::Status ReduceVectors(Bucket& bucket);
  absl::Status AddOverTensorRanks(const Bucket& bucket, VectorGradient part);
  Tensor ShareOf(const Bucket& bucket, const Tensor& whole_or_share) const;
  Tensor MasterOf(const Bucket& bucket) const;

  ParameterSharding sharding_;
  Allocator* allocator_;
  Backend* backend_;
  SharedRooms* rooms_;
  RankGroups groups_;
  std::vector<Bucket> buckets_;
  std::vector<Parameter> parameters_;
  std::vector<int64_t> offsets_;  // by parameter: of its part in its bucket
  Tensor tied_head_gradient_;
};

}  // namespace geopipe
