#include "optimizer/model/plan/plan_memory.h"

#include <algorithm>
#include <set>

#include "optimizer/base/check.h"
#include "optimizer/model/collective_memory.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

// Slots per channel for messages that are sent once an iteration (ChannelsOf in runtime/executor/channels.cc).
constexpr int64_t kSlotsPerIteration = 2;
constexpr int64_t kNormHeaderBytes = 4;
constexpr int64_t kTokenIdBytes = 4;
constexpr int64_t kSnapshotBytes = 12;  // of a parameter: weight and both moments

// Messages of a channel that is used once an iteration, at either end.
constexpr int64_t kReadyPerIteration = kReadyPerSlot * kSlotsPerIteration;

int64_t SliceOf(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

// Bytes of the terms of tensors whose names are `longer` characters longer.
int64_t TermsBytes(const std::vector<ParameterTensor>& tensors, int64_t longer = 0) {
  int64_t bytes = 0;
  for (const ParameterTensor& tensor : tensors) {
    bytes += 4 + (std::ssize(tensor.name) + longer + 3) / 4 * 4 + 8;
  }
  return bytes;
}

}  // namespace

ExecutionConfig ConfigOfPlan(const JobSpec& job, const Plan& plan, int32_t pipeline_rank) {
  return MakeExecutionConfig(job, plan.micro_batch_size, plan.sequence_length,
                             plan.pipeline_ranks[pipeline_rank].recompute, plan.zero_stage);
}

std::vector<Recompute> RecomputeOfRanks(const Plan& plan) {
  std::vector<Recompute> modes;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    modes.push_back(rank.recompute);
  }
  return modes;
}

namespace {

int64_t GroupBytes(int64_t ranks, const ExecutionConfig& config, bool on_one_node) {
  const auto count = static_cast<int32_t>(ranks);
  const int64_t of_messages = config.own_memory ? ReadyMessageCollectiveBytes(count) : MessageCollectiveBytes(count);
  return (on_one_node ? SharedCollectiveBytes(count) : of_messages) +
         (config.own_memory && count > 1 ? 2 * kStagedPieceBytes : 0);
}

}  // namespace

int64_t CollectiveBytes(const ModelSpec& model, const ExecutionConfig& config, bool replicas_on_one_node) {
  const int64_t sharers = std::max<int64_t>(1, config.tensor / model.num_key_value_heads);
  return GroupBytes(config.tensor, config, true) + GroupBytes(sharers, config, true) +
         GroupBytes(config.data, config, replicas_on_one_node);
}

int64_t MinCollectiveBytes(const ModelSpec& model, const ExecutionConfig& config) {
  return std::min(CollectiveBytes(model, config, true), CollectiveBytes(model, config, false));
}

std::vector<int64_t> InFlightOfPlan(const Plan& plan) {
  return InFlightOf(plan.schedule, plan.Shape(), BoundaryDeltaN(plan));
}

std::vector<int64_t> InFlightOfSchedule(const Schedule& schedule) {
  std::vector<int64_t> most(static_cast<size_t>(schedule.shape.stages), 0);
  std::vector<int64_t> now(most.size(), 0);
  for (const std::vector<Action>& actions : schedule.devices) {
    for (const Action& action : actions) {
      now[action.stage] += action.kind == ActionKind::kForward ? 1 : 0;
      most[action.stage] = std::max(most[action.stage], now[action.stage]);
      now[action.stage] -= action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient ? 1 : 0;
    }
  }
  return most;
}

std::vector<StageFlow> FlowsOf(const std::vector<int64_t>& in_flight, CommMode comm) {
  std::vector<StageFlow> flows;
  flows.reserve(in_flight.size());
  for (const int64_t here : in_flight) {
    flows.push_back({.before = flows.empty() ? 0 : flows.back().here, .here = here, .comm = comm});
  }
  return flows;
}

int64_t StageNeeds::BoundaryMessages(const StageFlow& flow) const {
  if (own_memory) {
    return above ? 1 : 0;
  }
  const int64_t slots = (below ? flow.before : 0) + (above ? flow.here : 0);
  if (flow.comm == CommMode::kBlocking) {
    return slots + (above ? 1 : 0);
  }
  const int64_t activations = above ? flow.here : 0;
  const int64_t gradients = below ? std::max<int64_t>(0, flow.before - flow.here) : 0;
  return slots + activations + gradients;
}

int64_t StageNeeds::MostBoundaryMessages(const StageFlow& flow) const {
  if (own_memory) {
    return (below ? 1 : 0) + (above ? 1 : 0);
  }
  const int64_t slots = (below ? flow.before : 0) + (above ? flow.here : 0);
  if (flow.comm == CommMode::kBlocking) {
    return slots + (below || above ? 1 : 0);
  }
  return slots + std::max(below ? flow.before : 0, above ? flow.here : 0) + (below && above ? 1 : 0);
}

int64_t StageNeeds::HostMessages(const StageFlow& flow) const {
  // Both ways, each at one end.
  return own_memory ? 2 * kReadyPerSlot * ((below ? flow.before : 0) + (above ? flow.here : 0)) : 0;
}

int64_t StageNeeds::MoreMessageBytes(const StageFlow& flow) const {
  StageFlow more = flow;
  ++more.here;
  more.before += below ? 1 : 0;
  return (BoundaryMessages(more) - BoundaryMessages(flow)) * message_bytes;
}

StageMemory StageNeeds::At(const StageFlow& flow) const {
  StageMemory memory = alone;
  memory.host_bytes += host_bytes + HostMessages(flow) * message_bytes;
  memory.transport_bytes = TransportBytes(flow);
  if (own_memory) {
    return memory;
  }
  memory.transport_bytes += std::max<int64_t>(0, tied_bytes - flow.here * memory.activation_bytes);
  // A micro-batch whose W is postponed is no longer in flight, but its gradient may still be on its way.
  memory.weight_grad_bytes += below && !above && flow.comm != CommMode::kBlocking ? message_bytes : 0;
  return memory;
}

int64_t StageNeeds::PeakBytes(const StageFlow& flow) const {
  const StageMemory memory = At(flow);
  return memory.static_bytes() + flow.here * memory.activation_bytes;
}

NormTermSizes::NormTermSizes(const ModelSpec& model) {
  const std::vector<ParameterTensor> of_layer = ParameterTensors(model, {.first = 0, .last = 0});
  for (int64_t first = 0; first < model.num_hidden_layers; first = std::max<int64_t>(10, 10 * first)) {
    layers_.push_back({.first = first,
                       .end = std::min(model.num_hidden_layers, std::max<int64_t>(10, 10 * first)),
                       .bytes = TermsBytes(of_layer, /*longer=*/std::ssize(layers_))});
  }
  for (const bool embedding : {false, true}) {
    for (const bool head : {false, true}) {
      ends_[embedding ? 1 : 0][head ? 1 : 0] =
          kNormHeaderBytes +
          TermsBytes(ParameterTensors(model, {.first = 0, .last = -1, .has_embedding = embedding, .has_head = head}));
    }
  }
}

int64_t NormTermSizes::Of(const LayerRange& range) const {
  int64_t bytes = ends_[range.has_embedding ? 1 : 0][range.has_head ? 1 : 0];
  for (const Layers& layers : layers_) {
    const int64_t count = std::min(layers.end, range.last + 1) - std::max(layers.first, range.first);
    bytes += std::max<int64_t>(0, count) * layers.bytes;
  }
  return bytes;
}

int64_t NormTermSizes::OfAll(int32_t stages) const {
  int64_t bytes = stages == 1 ? ends_[1][1] : ends_[1][0] + (stages - 2) * ends_[0][0] + ends_[0][1];
  for (const Layers& layers : layers_) {
    bytes += (layers.end - layers.first) * layers.bytes;
  }
  return bytes;
}

SnapshotSizes::SnapshotSizes(const ModelSpec& model, const ExecutionConfig& config) : replicas_(config.data) {
  const auto elements = [&](const LayerRange& range) { return ParameterCountPerRank(model, range, config.tensor); };
  const auto states = [&](BucketKind kind, int64_t count) {
    return kSnapshotBytes * ShareOfBucket(kind, count, config.data, config.zero_stage).states;
  };
  const int64_t vectors = LayerVectorElements(model, config.tensor);
  const int64_t layer = elements({.first = 0, .last = 0}) - vectors;
  const bool divides = config.data > 1 && config.zero_stage >= 1;
  layer_bytes_ = divides ? states(BucketKind::kLayer, layer) : 0;
  layer_turn_bytes_ = kSnapshotBytes * (vectors + (divides ? 0 : layer));
  embedding_bytes_ = states(BucketKind::kEmbedding, elements({.has_embedding = true}));
  head_bytes_ =
      states(BucketKind::kHead, elements({.has_head = true}) - model.hidden_size) + kSnapshotBytes * model.hidden_size;
}

int64_t SnapshotSizes::Of(const LayerRange& range) const {
  return range.count() * layer_bytes_ + SliceOf(range.count(), replicas_) * layer_turn_bytes_ +
         (range.has_embedding ? embedding_bytes_ : 0) + (range.has_head ? head_bytes_ : 0);
}

PlanMemoryModel::PlanMemoryModel(const JobSpec& job, const ExecutionConfig& config,
                                 const std::vector<int32_t>& placement)
    : PlanMemoryModel(job, config, placement, std::vector<Recompute>(placement.size(), config.recompute)) {}

PlanMemoryModel::PlanMemoryModel(const JobSpec& job, const ExecutionConfig& config,
                                 const std::vector<int32_t>& placement, std::span<const Recompute> recompute,
                                 std::span<const int64_t> collective_bytes)
    : norm_terms_(job.model),
      model_layers_(job.model.num_hidden_layers),
      clips_(job.training.grad_clip.has_value()),
      own_memory_(config.own_memory) {
  if (own_memory_ && !job.checkpoint.path.empty()) {
    snapshots_.emplace(job.model, config);
  }
  const int64_t message_bytes = SliceOf(BoundaryMessageBytes(job.model, config), config.tensor);
  const auto stages = static_cast<int32_t>(placement.size());
  std::set<int32_t> seen;
  for (int32_t stage = 0; stage < stages; ++stage) {
    const int32_t device = placement[stage];
    recompute_.push_back(recompute[device]);
    std::optional<StageMemoryModel>& mode = modes_[static_cast<size_t>(recompute[device])];
    if (!mode.has_value()) {
      ExecutionConfig of_device = config;
      of_device.recompute = recompute[device];
      mode.emplace(job.model, of_device);
    }
    StageNeeds& need = places_.emplace_back();
    need.below = stage > 0 && placement[stage - 1] != device;
    need.above = stage + 1 < stages && placement[stage + 1] != device;
    need.message_bytes = message_bytes;
    need.own_memory = own_memory_;
    int64_t& exchange_bytes = own_memory_ ? need.host_bytes : need.exchange_bytes;
    if (seen.insert(device).second) {
      exchange_bytes = collective_bytes.empty() ? MinCollectiveBytes(job.model, config) : collective_bytes[device];
      exchange_bytes +=
          clips_ ? (own_memory_ ? kReadyPerIteration : kSlotsPerIteration) * norm_terms_.OfAll(stages) : 0;
      need.host_bytes += own_memory_ ? 2 * kParameterPieceBytes : 0;
    }
    if (own_memory_) {
      const int64_t ends = (stage == 0 ? 1 : 0) + (stage + 1 == stages ? 1 : 0);
      const int64_t kinds = ends + (config.resets_documents ? 1 : 0);
      need.host_bytes += kTokenIdBytes * (kinds * (job.training.tokens_per_iteration / config.data) +
                                          (kinds > 0 ? 2 - ends : 0) * config.tokens());
    }
  }
  devices_ = std::ssize(seen);
  if (job.model.tie_word_embeddings && placement.front() != placement.back()) {
    for (StageNeeds* const need : {&places_.front(), &places_.back()}) {
      // The exchange covers the part of the embedding that the rank updates.
      const BucketShare share =
          ShareOfBucket(BucketKind::kEmbedding, job.model.vocab_rows() * job.model.hidden_size / config.tensor,
                        config.data, config.zero_stage);
      need->tied_bytes = kGradientBytes * share.shard;
      // Bytes of the slots and of the message to send. Without clipping the first stage begins its next iteration as
      // soon as the other's gradient is there, while its own may still be on its way.
      const int64_t messages = need == &places_.front() && !clips_ ? 2 : 1;
      need->exchange_bytes += (own_memory_ ? 1 : kSlotsPerIteration + messages) * need->tied_bytes;
      need->host_bytes += own_memory_ ? 2 * kReadyPerIteration * need->tied_bytes : 0;
    }
  }
}

StageNeeds PlanMemoryModel::Needs(int32_t stage, const LayerRange& range) const {
  StageNeeds need = places_[stage];
  need.alone = LayersOf(stage).Of(range);
  // The device's own terms have no slot here, but a message to each other device, which may be on its way when the next
  // iteration has all its micro-batches in flight.
  if (own_memory_) {
    need.host_bytes += clips_ ? (devices_ - 2) * kReadyPerIteration * norm_terms_.Of(range) : 0;
    need.host_bytes += snapshots_.has_value() ? snapshots_->Of(range) : 0;
  } else {
    need.exchange_bytes += clips_ ? (devices_ - 1 - kSlotsPerIteration) * norm_terms_.Of(range) : 0;
  }
  return need;
}

int64_t PlanMemoryModel::MostLayers(int32_t stage, const StageFlow& flow, int64_t capacity_bytes, Layers which) const {
  LayerRange range{.first = 0, .last = 0, .has_embedding = stage == 0, .has_head = stage + 1 == std::ssize(places_)};
  int64_t low = 0;  // fits
  int64_t high = model_layers_ + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    range.first = which == Layers::kFirst ? 0 : model_layers_ - middle;
    range.last = range.first + middle - 1;
    (Needs(stage, range).PeakBytes(flow) <= capacity_bytes ? low : high) = middle;
  }
  return low;
}

std::vector<StageNeeds> NeedsOfPlan(const JobSpec& job, const Plan& plan) {
  GP_CHECK(!plan.stages.empty());
  const ExecutionConfig config = ConfigOfPlan(job, plan);
  std::vector<int64_t> collective_bytes;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    const std::span<const DevicePlace> places = plan.DevicesOf(rank);
    const bool one_node =
        std::ranges::all_of(places, [&](const DevicePlace& place) { return place.node == places.front().node; });
    collective_bytes.push_back(CollectiveBytes(job.model, config, one_node));
  }
  const PlanMemoryModel model(job, config, plan.Shape().placement, RecomputeOfRanks(plan), collective_bytes);
  std::vector<StageNeeds> needs;
  for (const StagePlan& stage : plan.stages) {
    needs.push_back(model.Needs(static_cast<int32_t>(needs.size()), stage.layers));
  }
  return needs;
}

std::vector<StageMemory> MemoryOfStages(const std::vector<StageNeeds>& needs, const std::vector<int64_t>& in_flight,
                                        CommMode comm) {
  GP_CHECK(needs.size() == in_flight.size(), "{} numbers in flight for {} stages", in_flight.size(), needs.size());
  std::vector<StageMemory> memory;
  memory.reserve(needs.size());
  for (const StageFlow& flow : FlowsOf(in_flight, comm)) {
    memory.push_back(needs[memory.size()].At(flow));
  }
  return memory;
}

std::vector<StageMemory> MemoryOfPlan(const JobSpec& job, const Plan& plan) {
  return MemoryOfStages(NeedsOfPlan(job, plan), InFlightOfPlan(plan), plan.comm);
}

}  // namespace geopipe
