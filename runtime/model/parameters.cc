#include "runtime/model/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/model/adamw.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

static_assert(kRunBytes == kParameterPieceBytes);  // which planners count

Tensor FirstOf(const Tensor& tensor, int64_t elements) { return tensor.Part(0, {elements}); }

}  // namespace

std::vector<TensorPiece> PiecesOf(const ParameterBucket& bucket, const ParameterSharding& sharding) {
  const BucketShare share =
      ShareOfBucket(bucket.kind, bucket.elements_per_rank(sharding.tensor), sharding.data, sharding.zero_stage);
  const bool divided = sharding.data > 1 && sharding.zero_stage >= 1 && bucket.kind != BucketKind::kVectors;
  const int64_t own = divided ? sharding.data_rank * share.shard : 0;
  std::vector<TensorPiece> pieces;
  int64_t offset = 0;
  for (const ParameterTensor& tensor : bucket.tensors) {
    const int64_t count = tensor.count_per_rank(sharding.tensor);
    const int64_t begin = std::clamp(own - offset, int64_t{0}, count);
    const int64_t end = std::clamp(own + share.shard - offset, int64_t{0}, count);
    pieces.push_back({.tensor = tensor,
                      .tensor_ranks = sharding.tensor,
                      .tensor_rank = sharding.tensor_rank,
                      .first = begin,
                      .count = std::max<int64_t>(0, end - begin)});
    offset += count;
  }
  return pieces;
}

// --- Making a set -------------------------------------------------------------------------------------------------

absl::StatusOr<ParameterSet> ParameterSet::Create(const std::vector<ParameterBucket>& buckets,
                                                  const ParameterSharding& sharding, WeightSource& weights,
                                                  Allocator& allocator, Backend& backend, SharedRooms* rooms) {
  ParameterSet set(sharding, allocator, backend, rooms);
  for (const ParameterBucket& bucket : buckets) {
    GP_RETURN_IF_ERROR(set.AddBucket(bucket));
  }
  for (Parameter& parameter : set.parameters_) {
    GP_RETURN_IF_ERROR(set.Fill(parameter, weights));
  }
  for (const Bucket& bucket : set.buckets_) {
    GP_RETURN_IF_ERROR(set.RoundMasters(bucket));
  }
  return set;
}

absl::Status ParameterSet::AddBucket(const ParameterBucket& spec) {
  Bucket& bucket = buckets_.emplace_back();
  bucket.kind = spec.kind;
  bucket.layer = spec.layer;
  bucket.is_head_too = spec.is_head_too;
  bucket.first_parameter = parameters_.size();
  bucket.parameters = spec.tensors.size();
  bucket.elements = spec.elements_per_rank(sharding_.tensor);
  bucket.share = ShareOfBucket(spec.kind, bucket.elements, sharding_.data, sharding_.zero_stage);
  GP_RETURN_IF_ERROR(Allocate(bucket));
  int64_t offset = 0;
  for (const TensorPiece& piece : PiecesOf(spec, sharding_)) {
    AddParameter(bucket, piece, offset);
    offset += piece.tensor.count_per_rank(sharding_.tensor);
  }
  return absl::OkStatus();
}

absl::Status ParameterSet::Allocate(Bucket& bucket) {
  const BucketShare& share = bucket.share;
  const auto make = [this](MemoryCategory category, int64_t elements) -> absl::StatusOr<Tensor> {
    GP_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(*allocator_, category, DType::kFp32, {elements}));
    GP_RETURN_IF_ERROR(backend_->Zero(tensor));
    return tensor;
  };
  const auto make_states = [&]() {
    return Offloaded(bucket)
               ? Tensor::Zeros(allocator_->host(), MemoryCategory::kOptimizer, DType::kFp32, {share.states})
               : make(MemoryCategory::kOptimizer, share.states);
  };
  if (sharding_.precision == Precision::kBf16 && bucket.kind != BucketKind::kVectors) {
    GP_ASSIGN_OR_RETURN(bucket.values,
                        Tensor::Create(*allocator_, MemoryCategory::kWeights, DType::kBf16, {share.weights}));
    GP_ASSIGN_OR_RETURN(bucket.masters, make_states());
  } else {
    GP_ASSIGN_OR_RETURN(bucket.values, make(MemoryCategory::kWeights, share.weights));
  }
  GP_ASSIGN_OR_RETURN(bucket.gradients, make(MemoryCategory::kGradients, share.gradients));
  if (bucket.is_head_too) {
    GP_ASSIGN_OR_RETURN(bucket.tied_head_gradients, make(MemoryCategory::kGradients, share.gradients));
  }
  GP_ASSIGN_OR_RETURN(bucket.first_moments, make_states());
  GP_ASSIGN_OR_RETURN(bucket.second_moments, make_states());
  if (Offloaded(bucket)) {
    GP_CHECK(rooms_ != nullptr, "states of the host without room on the device");
    GP_RETURN_IF_ERROR(rooms_->states.Reserve(StateVectors(bucket.kind, sharding_.precision), share.states));
  }
  if (Divided(bucket) && sharding_.zero_stage >= 2) {
    GP_CHECK(rooms_ != nullptr, "ZeRO {} without room for whole buckets", sharding_.zero_stage);
    GP_RETURN_IF_ERROR(rooms_->whole_buckets.Reserve(WholeBucketsAtOnce(sharding_.zero_stage), share.padded));
  }
  return absl::OkStatus();
}

void ParameterSet::AddParameter(Bucket& bucket, const TensorPiece& piece, int64_t offset) {
  Parameter parameter;
  parameter.spec = piece.tensor;
  parameter.piece = piece;
  const std::vector<int64_t> shape = piece.tensor.shape_per_rank(sharding_.tensor);
  if (bucket.share.weights >= bucket.elements) {
    parameter.value = bucket.values.Part(offset, shape);
  }
  if (bucket.share.gradients >= bucket.elements) {
    parameter.gradient = bucket.gradients.Part(offset, shape);
    if (bucket.is_head_too) {
      tied_head_gradient_ = bucket.tied_head_gradients.Part(offset, shape);
    }
  }
  if (piece.count > 0) {
    const bool all = piece.count == piece.tensor.count_per_rank(sharding_.tensor);
    const std::vector<int64_t> held = all ? shape : std::vector{piece.count};
    const int64_t at = offset + piece.first - OwnOffset(bucket);
    parameter.master = MasterOf(bucket).Part(at, held);
    parameter.first_moment = bucket.first_moments.Part(at, held);
    parameter.second_moment = bucket.second_moments.Part(at, held);
  }
  parameters_.push_back(std::move(parameter));
  offsets_.push_back(offset);
}

absl::Status ParameterSet::Fill(Parameter& parameter, WeightSource& weights) {
  const TensorPiece& piece = parameter.piece;
  if (piece.count == 0) {
    return absl::OkStatus();
  }
  GP_RETURN_IF_ERROR(
      FillInRuns(parameter.master, [&](const Tensor& host) { return weights.ReadPiece(piece, host.fp32()); }));
  return FillInRuns(parameter.first_moment, [&](const Tensor& first) {
    return FillInRuns(parameter.second_moment, [&](const Tensor& second) -> absl::Status {
      GP_ASSIGN_OR_RETURN(const bool found, weights.ReadMomentsPiece(piece, first.fp32(), second.fp32()));
      if (!found) {
        std::ranges::fill(first.fp32(), 0.0F);
        std::ranges::fill(second.fp32(), 0.0F);
      }
      return absl::OkStatus();
    });
  });
}

absl::Status ParameterSet::RoundMasters(const Bucket& bucket) {
  if (bucket.masters.empty()) {
    return absl::OkStatus();
  }
  const Tensor computes = ShareOf(bucket, bucket.values);
  return ForEachRun(bucket, RunUse::kRead, [&](const StateRun& run) {
    return backend_->Convert(ViewOf(run.master), ViewOf(computes.Part(run.first, {run.count})));
  });
}

Parameter* ParameterSet::Find(std::string_view name) {
  const auto found =
      std::ranges::find_if(parameters_, [name](const Parameter& parameter) { return parameter.spec.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

size_t ParameterSet::BucketOf(BucketKind kind, int64_t layer) const {
  const auto found = std::ranges::find_if(
      buckets_, [&](const Bucket& bucket) { return bucket.kind == kind && bucket.layer == layer; });
  GP_CHECK(found != buckets_.end(), "no bucket {} of layer {}", static_cast<int>(kind), layer);
  return static_cast<size_t>(found - buckets_.begin());
}

absl::Status ParameterSet::Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) {
  const Parameter* parameter = Find(name);
  if (parameter == nullptr) {
    return absl::NotFoundError(fmt::format("this stage does not hold the parameter {}", name));
  }
  if (parameter->spec.shape != shape || values.size() != static_cast<size_t>(parameter->spec.count())) {
    return absl::InvalidArgumentError(fmt::format("the parameter {} has shape [{}], not [{}]", name,
                                                  fmt::join(parameter->spec.shape, ", "), fmt::join(shape, ", ")));
  }
  GP_CHECK(parameter->piece.count == parameter->spec.count(), "a rank that has part of {} is asked for all of it",
           name);
  return ReadOnHost(parameter->master, [&](const Tensor& host) { std::ranges::copy(host.fp32(), values.begin()); });
}

// --- Whole buckets ------------------------------------------------------------------------------------------------

void ParameterSet::SetViews(Bucket& bucket, Tensor Parameter::*view, const Tensor& whole) {
  for (size_t i = bucket.first_parameter; i < bucket.first_parameter + bucket.parameters; ++i) {
    parameters_[i].*view = whole.Part(offsets_[i], parameters_[i].spec.shape_per_rank(sharding_.tensor));
  }
}

void ParameterSet::DropViews(Bucket& bucket, Tensor Parameter::*view) {
  for (Parameter& parameter : ParametersOf(bucket)) {
    parameter.*view = Tensor();
  }
}

absl::Status ParameterSet::UseGroups(const RankGroups& groups) {
  GP_CHECK((groups.data != nullptr) == (sharding_.data > 1) && (groups.tensor != nullptr) == (sharding_.tensor > 1),
           "groups that don't fit the sharding");
  groups_ = groups;
  for (Bucket& bucket : buckets_) {
    bucket.under_way.clear();
    bucket.weights_room = nullptr;
    if (Divided(bucket) && sharding_.zero_stage < 3) {
      GP_RETURN_IF_ERROR(Gather(bucket, bucket.values));
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterSet::ShareStates(int32_t giver, bool receives) {
  GP_CHECK(groups_.data != nullptr && sharding_.zero_stage == 0, "states that are not the same on replicas");
  constexpr int64_t kElementsAtATime = int64_t{1} << 24;  // so that no operation is long
  const bool gives = groups_.data->rank() == giver;
  for (const Bucket& bucket : buckets_) {
    const auto share = [&](const StateRun& run) -> absl::Status {
      for (const Tensor* const states : {&run.master, &run.first_moment, &run.second_moment}) {
        // A replica that needs no states receives them where gradients will be.
        const Tensor& memory = receives || gives ? *states : bucket.gradients;
        for (int64_t done = 0; done < run.count; done += kElementsAtATime) {
          const Tensor part = memory.Part(done, {std::min(kElementsAtATime, run.count - done)});
          GP_ASSIGN_OR_RETURN(const Completion given, groups_.data->Broadcast(giver, ElementsOf(part)));
          GP_RETURN_IF_ERROR(groups_.data->Join(given));
        }
      }
      return absl::OkStatus();
    };
    GP_RETURN_IF_ERROR(ForEachRun(bucket, receives ? RunUse::kWrite : RunUse::kRead, share));
    if (receives) {
      GP_RETURN_IF_ERROR(RoundMasters(bucket));
    } else if (!gives) {
      GP_RETURN_IF_ERROR(backend_->Zero(bucket.gradients));
    }
  }
  return absl::OkStatus();
}

// Enqueues the gathering of `whole` from the parts that the replicas have updated.
absl::Status ParameterSet::Gather(Bucket& bucket, const Tensor& whole) {
  const bool in_place = whole.address() == bucket.values.address();
  const Tensor own =
      in_place ? whole.Part(OwnOffset(bucket), {bucket.share.shard}) : bucket.values.Part(0, {bucket.share.shard});
  GP_ASSIGN_OR_RETURN(const Completion done, groups_.data->AllGather(ElementsOf(own), ElementsOf(whole)));
  bucket.under_way.push_back(done);
  return absl::OkStatus();
}

absl::Status ParameterSet::GatherInRoom(Bucket& bucket) {
  GP_ASSIGN_OR_RETURN(WholeBuckets::Room* const room, rooms_->whole_buckets.Take());
  const Tensor whole = room->memory.As(bucket.values.dtype(), {bucket.share.padded});
  GP_RETURN_IF_ERROR(Gather(bucket, whole));
  SetViews(bucket, &Parameter::value, whole);
  bucket.weights_room = room;
  room->leave = [this, &bucket] {
    bucket.weights_room = nullptr;
    DropViews(bucket, &Parameter::value);
    return Await(bucket);
  };
  return absl::OkStatus();
}

absl::Status ParameterSet::Await(Bucket& bucket) {
  absl::Status status;
  for (const Completion& done : std::exchange(bucket.under_way, {})) {
    status.Update(groups_.data->Join(done));  // each, or one of a failed group would still write
  }
  return status;
}

absl::Status ParameterSet::Use(size_t index, std::optional<size_t> next) {
  Bucket& bucket = buckets_[index];
  if (!Divided(bucket) || sharding_.zero_stage < 3) {
    return Await(bucket);
  }
  if (bucket.weights_room == nullptr) {
    GP_RETURN_IF_ERROR(GatherInRoom(bucket));
  }
  rooms_->whole_buckets.Touch(*bucket.weights_room);
  if (next.has_value() && buckets_[*next].weights_room == nullptr && Divided(buckets_[*next])) {
    GP_RETURN_IF_ERROR(GatherInRoom(buckets_[*next]));
  }
  return Await(bucket);
}

absl::Status ParameterSet::EndForwards() {
  return rooms_ == nullptr ? absl::OkStatus() : rooms_->whole_buckets.Clear();
}

// --- Gradients ----------------------------------------------------------------------------------------------------

absl::Status ParameterSet::BeginIteration() {
  for (Bucket& bucket : buckets_) {
    const bool in_rooms = Divided(bucket) && sharding_.zero_stage >= 2;
    bucket.is_fresh = !in_rooms && (bucket.kind == BucketKind::kLayer || bucket.kind == BucketKind::kHead);
    bucket.is_tied_head_fresh = !in_rooms && !bucket.tied_head_gradients.empty();
    if (!bucket.is_fresh) {
      GP_RETURN_IF_ERROR(backend_->Zero(bucket.gradients));
    }
    if (!bucket.tied_head_gradients.empty() && !bucket.is_tied_head_fresh) {
      GP_RETURN_IF_ERROR(backend_->Zero(bucket.tied_head_gradients));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ParameterSet::BeginGradients(size_t index, Accumulator which) {
  Bucket& bucket = buckets_[index];
  if (!Divided(bucket) || sharding_.zero_stage < 2) {
    return !std::exchange(which == Accumulator::kOwn ? bucket.is_fresh : bucket.is_tied_head_fresh, false);
  }
  GP_ASSIGN_OR_RETURN(WholeBuckets::Room* const room, rooms_->whole_buckets.Take());
  const Tensor whole = FirstOf(room->memory, bucket.share.padded);
  GP_RETURN_IF_ERROR(backend_->Zero(whole));
  if (which == Accumulator::kOwn) {
    SetViews(bucket, &Parameter::gradient, whole);
  } else {
    tied_head_gradient_ = whole.Part(0, ParametersOf(bucket).front().spec.shape_per_rank(sharding_.tensor));
  }
  bucket.gradients_room = room;
  return true;
}

absl::Status ParameterSet::EndGradients(size_t index, bool last, Accumulator which) {
  Bucket& bucket = buckets_[index];
  const Tensor& accumulator = which == Accumulator::kOwn ? bucket.gradients : bucket.tied_head_gradients;
  if (sharding_.data == 1 || (sharding_.zero_stage < 2 && !last)) {
    return absl::OkStatus();
  }
  if (sharding_.zero_stage == 0) {
    GP_ASSIGN_OR_RETURN(const Completion done,
                        groups_.data->AllReduce(ReduceOp::kSum, ElementsOf(accumulator), ElementsOf(accumulator)));
    bucket.under_way.push_back(done);
    return absl::OkStatus();
  }
  const bool in_room = sharding_.zero_stage >= 2;
  WholeBuckets::Room* const room = in_room ? std::exchange(bucket.gradients_room, nullptr) : nullptr;
  const Tensor whole = in_room ? FirstOf(room->memory, bucket.share.padded) : FirstOf(accumulator, bucket.share.padded);
  Tensor own = whole.Part(OwnOffset(bucket), {bucket.share.shard});
  GP_ASSIGN_OR_RETURN(const Completion done,
                      groups_.data->ReduceScatter(ReduceOp::kSum, ElementsOf(whole), ElementsOf(own)));
  if (!in_room) {
    bucket.under_way.push_back(done);
    return absl::OkStatus();
  }
  which == Accumulator::kOwn ? DropViews(bucket, &Parameter::gradient) : void(tied_head_gradient_ = Tensor());
  // The tensor is shared because std::function copies its captures.
  room->leave = [this, done, &accumulator, own = std::make_shared<const Tensor>(std::move(own))]() -> absl::Status {
    GP_RETURN_IF_ERROR(groups_.data->Join(done));
    return backend_->Axpy(1.0, *own, accumulator);
  };
  return absl::OkStatus();
}

// Vectors of the same kind are neighbours in their bucket.
absl::Status ParameterSet::AddOverTensorRanks(const Bucket& bucket, VectorGradient part) {
  int64_t begin = bucket.elements;
  int64_t end = 0;
  for (size_t i = bucket.first_parameter; i < bucket.first_parameter + bucket.parameters; ++i) {
    if (VectorGradientOf(parameters_[i].spec) == part) {
      begin = std::min(begin, offsets_[i]);
      end = std::max(end, offsets_[i] + parameters_[i].spec.count_per_rank(sharding_.tensor));
    }
  }
  if (begin >= end) {
    return absl::OkStatus();
  }
  const Tensor gradients = bucket.gradients.Part(begin, {end - begin});
  GP_ASSIGN_OR_RETURN(const Completion done,
                      groups_.tensor->AllReduce(ReduceOp::kSum, ElementsOf(gradients), ElementsOf(gradients)));
  return groups_.tensor->Join(done);
}

absl::Status ParameterSet::ReduceVectors(Bucket& bucket) {
  for (const VectorGradient part : {VectorGradient::kOfRows, VectorGradient::kOfHeads}) {
    const bool adds_up = part == VectorGradient::kOfHeads || sharding_.sequence_parallel;
    if (adds_up && groups_.tensor != nullptr) {
      GP_RETURN_IF_ERROR(AddOverTensorRanks(bucket, part));
    }
  }
  const Elements gradients = ElementsOf(bucket.gradients);
  if (groups_.data != nullptr) {
    GP_ASSIGN_OR_RETURN(const Completion done, groups_.data->AllReduce(ReduceOp::kSum, gradients, gradients));
    bucket.under_way.push_back(done);
  }
  return absl::OkStatus();
}

absl::Status ParameterSet::FinishGradients() {
  for (Bucket& bucket : buckets_) {
    if (bucket.kind == BucketKind::kVectors) {
      GP_RETURN_IF_ERROR(ReduceVectors(bucket));
    }
  }
  GP_RETURN_IF_ERROR(EndForwards());
  for (Bucket& bucket : buckets_) {
    GP_RETURN_IF_ERROR(Await(bucket));
    if (!bucket.tied_head_gradients.empty()) {
      GP_RETURN_IF_ERROR(
          backend_->Axpy(1.0, ShareOf(bucket, bucket.tied_head_gradients), ShareOf(bucket, bucket.gradients)));
    }
  }
  return absl::OkStatus();
}

// The run of a bucket that this replica updates.
Tensor ParameterSet::ShareOf(const Bucket& bucket, const Tensor& whole_or_share) const {
  const bool whole = whole_or_share.elements() > bucket.share.shard;
  return whole_or_share.Part(whole ? OwnOffset(bucket) : 0, {bucket.share.shard});
}

Tensor ParameterSet::GradientShare(size_t bucket) const {
  return ShareOf(buckets_[bucket], buckets_[bucket].gradients);
}

absl::Status ParameterSet::SumSquares(VectorView<double> sums) {
  for (const Bucket& bucket : buckets_) {
    // Replicas that hold a whole bucket count a run of it each, too, so that the sum is formed alike for every ZeRO
    // stage.
    const bool counts_whole = bucket.kind == BucketKind::kVectors || sharding_.data == 1;
    const int64_t run = counts_whole ? bucket.elements : ShardElements(bucket.elements, sharding_.data);
    const int64_t own = counts_whole ? 0 : run * sharding_.data_rank;
    const bool skips = counts_whole && sharding_.data_rank > 0;
    const int64_t held_from = bucket.gradients.elements() >= bucket.elements ? 0 : own;
    std::vector<Backend::Run> runs;
    for (size_t i = bucket.first_parameter; i < bucket.first_parameter + bucket.parameters; ++i) {
      const ParameterTensor& spec = parameters_[i].spec;
      const int64_t begin = std::max(offsets_[i], own);
      const int64_t end = std::min(offsets_[i] + spec.count_per_rank(sharding_.tensor), own + run);
      const bool shared = sharding_.tensor_rank % (sharding_.tensor / spec.parts(sharding_.tensor)) != 0;
      const bool is_empty = skips || shared || begin >= end;
      runs.push_back(is_empty ? Backend::Run() : Backend::Run(begin - held_from, end - held_from));
    }
    GP_RETURN_IF_ERROR(
        backend_->SumsOfSquares(bucket.gradients, runs, {sums.data + bucket.first_parameter, std::ssize(runs)}));
  }
  return absl::OkStatus();
}

// --- The update ---------------------------------------------------------------------------------------------------

Tensor ParameterSet::MasterOf(const Bucket& bucket) const {
  return ShareOf(bucket, bucket.masters.empty() ? bucket.values : bucket.masters);
}

absl::Status ParameterSet::ForEachRun(const Bucket& bucket, RunUse how,
                                      absl::FunctionRef<absl::Status(const StateRun&)> use) {
  const Tensor master = MasterOf(bucket);
  const int64_t states = bucket.share.states;
  const auto part = [](const Tensor& tensor, int64_t first, int64_t count) { return tensor.Part(first, {count}); };
  if (!Offloaded(bucket)) {
    return use({.first = 0,
                .count = states,
                .master = part(master, 0, states),
                .first_moment = part(bucket.first_moments, 0, states),
                .second_moment = part(bucket.second_moments, 0, states)});
  }
  const StateRoom& room = rooms_->states;
  for (int64_t first = 0; first < states; first += room.max_elements()) {
    const int64_t count = std::min(room.max_elements(), states - first);
    // fp32 weights have no separate master: the values on the device that compute are the master.
    const bool has_master = !bucket.masters.empty();
    const StateRun run{.first = first,
                       .count = count,
                       .master = has_master ? room.Vector(2, count) : part(master, first, count),
                       .first_moment = room.Vector(0, count),
                       .second_moment = room.Vector(1, count)};
    std::vector<std::pair<Tensor, const Tensor*>> passing;  // in the host's memory, and on the device
    passing.emplace_back(part(bucket.first_moments, first, count), &run.first_moment);
    passing.emplace_back(part(bucket.second_moments, first, count), &run.second_moment);
    if (has_master) {
      passing.emplace_back(part(bucket.masters, first, count), &run.master);
    }
    for (const auto& [host, device] : passing) {
      GP_RETURN_IF_ERROR(how == RunUse::kWrite ? absl::OkStatus() : Copy(host, *device));
    }
    GP_RETURN_IF_ERROR(use(run));
    for (const auto& [host, device] : passing) {
      GP_RETURN_IF_ERROR(how == RunUse::kRead ? absl::OkStatus() : Copy(*device, host));
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterSet::Update(const TrainingSpec& training, int64_t iteration, std::optional<double> grad_norm) {
  for (Bucket& bucket : buckets_) {
    AdamWStep step = MakeAdamWStep(training, iteration, grad_norm, /*decays=*/bucket.kind != BucketKind::kVectors);
    const Tensor gradients = ShareOf(bucket, bucket.gradients);
    const Tensor computes = ShareOf(bucket, bucket.values);
    const auto update = [&](const StateRun& run) {
      const Tensor gradient = gradients.Part(run.first, {run.count});
      const Tensor weight = computes.Part(run.first, {run.count});
      step.parameter = run.master;
      step.gradient = gradient;
      step.first_moment = run.first_moment;
      step.second_moment = run.second_moment;
      if (!bucket.masters.empty()) {
        step.compute_weight = weight;
      }
      return backend_->AdamW(step);
    };
    GP_RETURN_IF_ERROR(ForEachRun(bucket, RunUse::kUpdate, update));
    if (Divided(bucket) && sharding_.zero_stage < 3) {
      GP_RETURN_IF_ERROR(Gather(bucket, bucket.values));
    }
  }
  return absl::OkStatus();
}

void ParameterSet::Abandon() {
  if (rooms_ != nullptr) {
    rooms_->whole_buckets.Abandon();
  }
  for (Bucket& bucket : buckets_) {
    (void)Await(bucket);  // a failed operation has ended, too
    bucket.weights_room = nullptr;
    bucket.gradients_room = nullptr;
  }
}

}  // namespace geopipe
