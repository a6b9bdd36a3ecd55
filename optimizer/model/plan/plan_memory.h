// Memory of a plan's stages: that of memory_model.h for a stage by itself, and that of its messages, which depends on
// the micro-batches in flight on it and on the stage before it. A device that runs several stages needs the sum. Where
// devices have memory of their own, messages lie in the host's, and pass through the device's one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/execution_config.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/memory_model.h"
#include "optimizer/model/model_spec.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {

// The job's choices together with the plan's b, s and ZeRO stage, and the recompute mode of a pipeline rank. REQUIRES:
// the job's degrees are the plan's.
ExecutionConfig ConfigOfPlan(const JobSpec& job, const Plan& plan, int32_t pipeline_rank = 0);

// The mode of each pipeline rank.
std::vector<Recompute> RecomputeOfRanks(const Plan& plan);

// Bytes that a rank holds for the collective operations of its groups (optimizer/model/collective_memory.h), of the
// device, or of the host where the device has memory of its own.
int64_t CollectiveBytes(const ModelSpec& model, const ExecutionConfig& config, bool replicas_on_one_node);
// The least of them, wherever the replicas are.
int64_t MinCollectiveBytes(const ModelSpec& model, const ExecutionConfig& config);

// Most micro-batches between F and the end of B or I on every stage of `plan`, as its kind's row says.
std::vector<int64_t> InFlightOfPlan(const Plan& plan);

// The same for every stage of any schedule, from its lists.
std::vector<int64_t> InFlightOfSchedule(const Schedule& schedule);

// Most micro-batches in flight on a stage and on the one before it (any number for the first stage).
struct StageFlow {
  int64_t before = 0;
  int64_t here = 0;
  CommMode comm = CommMode::kNonBlocking;
};

// One entry per stage, from the most micro-batches in flight on each.
std::vector<StageFlow> FlowsOf(const std::vector<int64_t>& in_flight, CommMode comm);

// The memory of a stage that does not depend on the micro-batches in flight, and the figures that follow from it.
struct StageNeeds {
  StageMemory alone;          // transport_bytes is 0
  bool below = false;         // the stage before it is on another device, and exchanges messages with it
  bool above = false;         // the stage after it
  int64_t message_bytes = 0;  // an activation or its gradient; a rank's 1/t slice
  // Bytes kept for collective operations, norm terms and tied gradients from the first iteration to the last. The first
  // stage of a device counts what the device has once. Norm terms go from device to device, so it counts slots for
  // those of all stages; each stage of the device counts its own terms as messages to the other devices instead of
  // slots.
  int64_t exchange_bytes = 0;
  int64_t tied_bytes = 0;  // one tied-embedding gradient, where this stage exchanges it; else 0
  // Devices with memory of their own: exchange_bytes are of the device alone, and these of the host, besides
  // alone.host_bytes and boundary messages: what such exchanges need of it; ids of all tokens of an iteration, which
  // the host may have read before the device has taken the first; rooms for parameters on their way; and a copy of the
  // states that the rank writes to checkpoints.
  bool own_memory = false;
  int64_t host_bytes = 0;

  // Most boundary messages that the stage holds at once.
  //
  // Slots: receives are posted ahead, and a taken one is replaced at once. A boundary has as many in each direction as
  // micro-batches are in flight on its lower stage (SlotsNeeded in runtime/executor/channels.h). Sends: kept until
  // acknowledged, and over a long link none may be yet: activations of the micro-batches in flight here; gradients of
  // those in flight on the stage before and no longer here, for the stage before continues only with gradients that it
  // has acknowledged. The message that a backward receives takes the place of its own activation's message. A blocking
  // stage waits for the acknowledgement of each. A device with memory of its own has the activation that leaves, or the
  // gradient that has come.
  int64_t BoundaryMessages(const StageFlow& flow) const;
  // Most messages, whatever the activations meanwhile: gradients of all micro-batches in flight on the stage before may
  // be on their way when none is in flight here. A stage between others makes one while it has another, also on a
  // device with memory of its own.
  int64_t MostBoundaryMessages(const StageFlow& flow) const;
  // Boundary messages that the host keeps memory for (kReadyPerSlot); none where the memory is the device's.
  int64_t HostMessages(const StageFlow& flow) const;
  // Bytes of messages for one more micro-batch in flight here and on the stage before.
  int64_t MoreMessageBytes(const StageFlow& flow) const;
  int64_t TransportBytes(const StageFlow& flow) const {
    return exchange_bytes + BoundaryMessages(flow) * message_bytes;
  }
  // The stage's memory with transport_bytes and all of host_bytes filled in, and on the last stage a gradient's message
  // in weight_grad_bytes.
  // No micro-batch is in flight when the ends exchange their tied gradients; bytes of the exchange beyond the
  // activations count as transport.
  StageMemory At(const StageFlow& flow) const;
  // Most bytes at once where the backward is not split.
  int64_t PeakBytes(const StageFlow& flow) const;
};

// Bytes of one message of a stage's gradient-norm terms, as runtime/executor/norm_message.h writes it: a count, and of
// every tensor the length of its name, the name in whole words and an fp64 sum. In constant time.
class NormTermSizes {
 public:
  explicit NormTermSizes(const ModelSpec& model);

  int64_t Of(const LayerRange& range) const;
  int64_t OfAll(int32_t stages) const;  // together, however these share the layers

 private:
  // Terms of one layer depend on its index by the number of digits alone, so one layer stands for ten, ninety, ...
  struct Layers {
    int64_t first = 0;  // from here to before `end`
    int64_t end = 0;
    int64_t bytes = 0;  // each
  };
  std::vector<Layers> layers_;
  int64_t ends_[2][2] = {};  // [has_embedding][has_head], of no layers
};

// Bytes of a copy of the states that a rank writes to checkpoints, 12 per parameter (StateSnapshot in
// runtime/checkpoint/state), at most: where replicas hold the same states, each writes every so many layers. In
// constant time.
class SnapshotSizes {
 public:
  SnapshotSizes(const ModelSpec& model, const ExecutionConfig& config);

  int64_t Of(const LayerRange& range) const;

 private:
  int64_t replicas_ = 1;
  int64_t layer_bytes_ = 0;       // of every layer
  int64_t layer_turn_bytes_ = 0;  // of those whose turn it is
  int64_t embedding_bytes_ = 0;
  int64_t head_bytes_ = 0;
};

// The memory needs of a plan's stages for one job, b, s, ZeRO stage and the recompute modes of its devices, with any
// layers.
class PlanMemoryModel {
 public:
  // `placement`: the device of each stage. All devices recompute as `config` says, which is the job's with some b, s,
  // recompute mode and ZeRO stage (MakeExecutionConfig).
  PlanMemoryModel(const JobSpec& job, const ExecutionConfig& config, const std::vector<int32_t>& placement);
  // Each device recomputes as `recompute` says; `collective_bytes` has those of each device; empty: MinCollectiveBytes.
  PlanMemoryModel(const JobSpec& job, const ExecutionConfig& config, const std::vector<int32_t>& placement,
                  std::span<const Recompute> recompute, std::span<const int64_t> collective_bytes = {});

  // The needs of a stage, in constant time. REQUIRES: at least one layer. Only norm terms depend on where the layers
  // begin: by a few bytes, most from layer 0.
  StageNeeds Needs(int32_t stage, const LayerRange& range) const;
  // Per tensor-parallel rank.
  int64_t Parameters(const LayerRange& range) const { return LayersOf(0).Parameters(range); }
  // Most layers with which the stage's peak (StageNeeds::PeakBytes) stays within `capacity_bytes`, of the model's: the
  // first ones, which need most, or the last ones, which need a few bytes less than any others.
  enum class Layers : uint8_t { kFirst, kLast };
  int64_t MostLayers(int32_t stage, const StageFlow& flow, int64_t capacity_bytes, Layers which = Layers::kFirst) const;

 private:
  const StageMemoryModel& LayersOf(int32_t stage) const { return *modes_[static_cast<size_t>(recompute_[stage])]; }

  std::array<std::optional<StageMemoryModel>, kRecomputeModes> modes_;  // that some device has
  std::vector<Recompute> recompute_;                                    // by stage
  NormTermSizes norm_terms_;
  std::optional<SnapshotSizes> snapshots_;  // where the host has them
  std::vector<StageNeeds> places_;          // needs of a stage by its place, with no layers of its own
  int64_t model_layers_ = 0;
  int64_t devices_ = 0;
  bool clips_ = false;
  bool own_memory_ = false;
};

// One entry per stage. Reads only stages, b, s, recompute modes and ZeRO stage of `plan`.
std::vector<StageNeeds> NeedsOfPlan(const JobSpec& job, const Plan& plan);

// Memory of every stage with `in_flight` micro-batches (one number per stage).
std::vector<StageMemory> MemoryOfStages(const std::vector<StageNeeds>& needs, const std::vector<int64_t>& in_flight,
                                        CommMode comm);
// Memory of every stage with the plan's own schedule, ΔN and comm. Where the backward is not split, static_bytes() and
// activation_bytes times InFlightOfPlan add up to StageNeeds::PeakBytes, which is also the simulator's.
std::vector<StageMemory> MemoryOfPlan(const JobSpec& job, const Plan& plan);

}  // namespace geopipe
