#include "optimizer/model/plan_memory.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

// Slots per channel for what goes once an iteration (ChannelsOfStage in runtime/executor/channels.cc).
constexpr int64_t kSlotsPerIteration = 2;
constexpr int64_t kNormHeaderBytes = 4;

int64_t SliceOf(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

int64_t TermsBytes(const std::vector<ParameterTensor>& tensors) {
  int64_t bytes = 0;
  for (const ParameterTensor& tensor : tensors) {
    bytes += 4 + (std::ssize(tensor.name) + 3) / 4 * 4 + 8;
  }
  return bytes;
}

// Terms of one layer depend on its index by the number of digits alone, so one layer stands for ten, ninety, ...
class NormTermSizes {
 public:
  explicit NormTermSizes(const ModelSpec& model) : model_(model) {
    for (int64_t first = 0; first < model.num_hidden_layers; first = std::max<int64_t>(10, 10 * first)) {
      layers_.push_back({first, TermsBytes(ParameterTensors(model, {.first = first, .last = first}))});
    }
  }

  int64_t Of(const LayerRange& range) const {
    LayerRange ends = range;
    ends.last = ends.first - 1;
    int64_t bytes = kNormHeaderBytes + TermsBytes(ParameterTensors(model_, ends));
    for (size_t i = 0; i < layers_.size(); ++i) {
      const int64_t end = i + 1 < layers_.size() ? layers_[i + 1].first : model_.num_hidden_layers;
      const int64_t count = std::min(end, range.last + 1) - std::max(layers_[i].first, range.first);
      bytes += std::max<int64_t>(0, count) * layers_[i].bytes;
    }
    return bytes;
  }

 private:
  struct Layers {
    int64_t first = 0;  // from here on, to the next entry's
    int64_t bytes = 0;  // each
  };
  const ModelSpec& model_;
  std::vector<Layers> layers_;
};

}  // namespace

int64_t InFlight(ScheduleKind kind, int32_t stages, int32_t stage, int64_t micro_batches, int64_t advance) {
  switch (kind) {
    case ScheduleKind::kGpipe:
      return micro_batches;
    case ScheduleKind::kZbH2:
      return std::min<int64_t>(micro_batches, 2 * (stages - stage));
    default:
      return std::min(micro_batches, stages - stage + advance);
  }
}

std::vector<int64_t> InFlightOfPlan(const Plan& plan) {
  const auto stages = static_cast<int32_t>(plan.stages.size());
  const std::vector<int32_t> boundary_delta_n = BoundaryDeltaN(plan);
  std::vector<int64_t> in_flight(plan.stages.size());
  int64_t advance = 0;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    advance += stage + 1 < stages ? boundary_delta_n[stage] : 0;
    in_flight[stage] = InFlight(plan.schedule, stages, stage, plan.micro_batches, advance);
  }
  return in_flight;
}

std::vector<int64_t> InFlightOfSchedule(const Schedule& schedule) {
  std::vector<int64_t> most;
  for (const std::vector<Action>& actions : schedule.devices) {
    int64_t now = 0;
    int64_t greatest = 0;
    for (const Action& action : actions) {
      now += action.kind == ActionKind::kForward ? 1 : 0;
      greatest = std::max(greatest, now);
      now -= action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient ? 1 : 0;
    }
    most.push_back(greatest);
  }
  return most;
}

int64_t StageNeeds::BoundaryMessages(const StageFlow& flow) const {
  const int64_t slots = (first ? 0 : flow.before) + (last ? 0 : flow.here);
  if (flow.comm == CommMode::kBlocking) {
    return slots + (last ? 0 : 1);
  }
  const int64_t activations = last ? 0 : flow.here;
  const int64_t gradients = first ? 0 : std::max<int64_t>(0, flow.before - flow.here);
  return slots + activations + gradients;
}

StageMemory StageNeeds::At(const StageFlow& flow) const {
  StageMemory memory = alone;
  memory.transport_bytes =
      TransportBytes(flow) + std::max<int64_t>(0, tied_bytes - flow.here * memory.activation_bytes);
  return memory;
}

std::vector<StageNeeds> NeedsOfPlan(const JobSpec& job, const Plan& plan) {
  GP_CHECK(!plan.stages.empty());
  const ExecutionConfig config = MakeExecutionConfig(job, plan.micro_batch_size, plan.sequence_length, plan.recompute);
  const bool clips = job.training.grad_clip.has_value();
  // Accumulated in fp32, whatever the precision.
  const int64_t tied_bytes = SliceOf(job.model.vocab_size * job.model.hidden_size * 4, config.tensor);
  const NormTermSizes norm_terms(job.model);
  std::vector<int64_t> norm_bytes;
  int64_t all_norm_bytes = 0;
  if (clips) {
    for (const StagePlan& stage : plan.stages) {
      norm_bytes.push_back(norm_terms.Of(stage.layers));
      all_norm_bytes += norm_bytes.back();
    }
  }
  std::vector<StageNeeds> needs;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    StageNeeds need{.alone = MemoryOfStage(job.model, plan.stages[stage].layers, config),
                    .first = stage == 0,
                    .last = stage + 1 == plan.stages.size(),
                    .message_bytes = SliceOf(BoundaryMessageBytes(job.model, config), config.tensor)};
    need.exchange_bytes = clips ? kSlotsPerIteration * (all_norm_bytes - norm_bytes[stage]) : 0;
    if (job.model.tie_word_embeddings && need.first != need.last) {
      need.tied_bytes = tied_bytes;
      // The slots and the message to send. Without clipping the first stage begins its next iteration as soon as the
      // other's gradient is there, while its own may still be on its way.
      const int64_t messages = need.first && !clips ? 2 : 1;
      need.exchange_bytes += (kSlotsPerIteration + messages) * tied_bytes;
    }
    needs.push_back(need);
  }
  return needs;
}

std::vector<StageMemory> MemoryOfStages(const std::vector<StageNeeds>& needs, const std::vector<int64_t>& in_flight,
                                        CommMode comm) {
  GP_CHECK(needs.size() == in_flight.size(), "{} numbers in flight for {} stages", in_flight.size(), needs.size());
  std::vector<StageMemory> memory;
  memory.reserve(needs.size());
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    memory.push_back(
        needs[stage].At({.before = stage > 0 ? in_flight[stage - 1] : 0, .here = in_flight[stage], .comm = comm}));
  }
  return memory;
}

std::vector<StageMemory> MemoryOfPlan(const JobSpec& job, const Plan& plan) {
  return MemoryOfStages(NeedsOfPlan(job, plan), InFlightOfPlan(plan), plan.comm);
}

int64_t NormTermsBytes(const ModelSpec& model, const LayerRange& range) { return NormTermSizes(model).Of(range); }

}  // namespace geopipe
