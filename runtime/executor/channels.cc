#include "runtime/executor/channels.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/model/collective_memory.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"
#include "runtime/executor/norm_message.h"

namespace geopipe {
namespace {

static_assert(kUnacknowledgedPerSlot == kReadyPerSlot);  // which planners count

// Iterations to follow. A rank leaves an iteration only when the others have done their part of it, so messages of more
// than two iterations never wait together.
constexpr int kIterations = 2;

// Kind and boundary of the message that a SEND or RECV moves.
using Way = std::pair<MessageKind, int32_t>;

Way WayOf(const Action& action) {
  switch (action.kind) {
    case ActionKind::kSendForward:
      return {MessageKind::kActivation, action.stage};
    case ActionKind::kRecvForward:
      return {MessageKind::kActivation, action.stage - 1};
    case ActionKind::kSendBackward:
      return {MessageKind::kGradient, action.stage - 1};
    default:
      return {MessageKind::kGradient, action.stage};
  }
}

// Runs all lists, each rank as far as its inputs allow, and tracks how many messages of one channel each rank can know
// to have been taken by their receiver: knowledge travels with every message.
class KnowledgeRun {
 public:
  KnowledgeRun(const Schedule& schedule, const Way& way)
      : schedule_(schedule), way_(way), ranks_(schedule.devices.size()) {}

  int32_t MaxOutstanding() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (Step(rank)) {
          progress = true;
        }
      }
    }
    return max_in_flight_;
  }

 private:
  struct Rank {
    int iteration = 0;
    size_t position = 0;
    int32_t known_taken = 0;
  };
  using MessageKey = std::tuple<Way, int, int32_t>;

  bool Step(size_t index) {
    Rank& rank = ranks_[index];
    const std::vector<Action>& actions = schedule_.devices[index];
    if (rank.iteration == kIterations || actions.empty()) {
      return false;
    }
    const Action& action = actions[rank.position];
    if (IsSend(action.kind)) {
      Send(rank, action);
    } else if (IsRecv(action.kind) && !Receive(rank, action)) {
      return false;
    }
    if (++rank.position == actions.size()) {
      rank.position = 0;
      ++rank.iteration;
    }
    return true;
  }

  void Send(Rank& rank, const Action& action) {
    const Way way = WayOf(action);
    if (way == way_) {
      ++sent_;
      max_in_flight_ = std::max(max_in_flight_, sent_ - rank.known_taken);
    }
    in_flight_[{way, rank.iteration, action.micro_batch}] = rank.known_taken;
  }

  bool Receive(Rank& rank, const Action& action) {
    const Way way = WayOf(action);
    const auto message = in_flight_.find({way, rank.iteration, action.micro_batch});
    if (message == in_flight_.end()) {
      return false;
    }
    rank.known_taken = std::max(rank.known_taken, message->second);
    in_flight_.erase(message);
    if (way == way_) {
      rank.known_taken = ++taken_;
    }
    return true;
  }

  const Schedule& schedule_;
  const Way way_;
  std::vector<Rank> ranks_;
  std::map<MessageKey, int32_t> in_flight_;  // with its sender's knowledge
  int32_t sent_ = 0;
  int32_t taken_ = 0;
  int32_t max_in_flight_ = 0;
};

}  // namespace

ChannelId ActivationChannel(const PipelineShape& shape, std::span<const PeerId> pipeline, int32_t boundary) {
  return {MessageKind::kActivation, boundary, pipeline[shape.placement[boundary]],
          pipeline[shape.placement[boundary + 1]]};
}

ChannelId GradientChannel(const PipelineShape& shape, std::span<const PeerId> pipeline, int32_t boundary) {
  return {MessageKind::kGradient, boundary, pipeline[shape.placement[boundary + 1]],
          pipeline[shape.placement[boundary]]};
}

ChannelMessages MessagesOfPlan(const Plan& plan, const JobSpec& job, bool norms) {
  const ModelSpec& model = job.model;
  ChannelMessages messages;
  const DType dtype = job.precision == Precision::kBf16 ? DType::kBf16 : DType::kFp32;
  // Each tensor rank sends its slice: its rows, where it has no others, or else a run of elements.
  const int64_t tensor = plan.grid.tensor;
  const int64_t tokens = plan.micro_batch_size * plan.sequence_length;
  const bool cuts = tensor > 1 && !job.parallelism.sequence_parallel;
  messages.boundaries.assign(plan.stages.size() - 1,
                             cuts ? PayloadLayout::Of(dtype, {tokens * model.hidden_size / tensor})
                                  : PayloadLayout::Of(dtype, {tokens / tensor, model.hidden_size}));
  if (norms) {
    const std::string embedding = ParameterTensors(model, {.has_embedding = true}).front().name;
    std::vector<std::vector<NormTerm>> terms(plan.grid.pipeline);
    for (const StagePlan& stage : plan.stages) {
      // The first stage accounts for a tied embedding.
      const bool is_copy = model.tie_word_embeddings && !stage.layers.has_embedding;
      for (const ParameterTensor& tensor : ParameterTensors(model, stage.layers)) {
        if (!is_copy || tensor.name != embedding) {
          terms[stage.pipeline_rank].push_back({tensor.name, 0});
        }
      }
    }
    std::ranges::transform(terms, std::back_inserter(messages.norm_bytes), NormMessageBytes);
  }
  if (model.tie_word_embeddings && plan.stages.size() > 1) {
    // The exchange covers the part of the embedding that the rank updates.
    const BucketShare share = ShareOfBucket(BucketKind::kEmbedding, model.vocab_rows() * model.hidden_size / tensor,
                                            plan.grid.data, plan.zero_stage);
    messages.tied_gradient = PayloadLayout::Of(DType::kFp32, {share.shard});
  }
  return messages;
}

int32_t SlotsNeeded(const Schedule& lowered, MessageKind kind, int32_t boundary) {
  return KnowledgeRun(lowered, {kind, boundary}).MaxOutstanding();
}

std::vector<ChannelSpec> ChannelsOf(const Schedule& lowered, int32_t pipeline_rank, std::span<const PeerId> pipeline,
                                    const ChannelMessages& messages) {
  const PipelineShape& shape = lowered.shape;
  const PeerId own = pipeline[pipeline_rank];
  GP_CHECK(std::ssize(messages.boundaries) == shape.stages - 1, "{} boundaries of {} stages",
           messages.boundaries.size(), shape.stages);
  std::vector<ChannelSpec> channels;
  for (int32_t boundary = 0; boundary + 1 < shape.stages; ++boundary) {
    for (const ChannelId& id :
         {ActivationChannel(shape, pipeline, boundary), GradientChannel(shape, pipeline, boundary)}) {
      if (id.from_rank != id.to_rank && (id.from_rank == own || id.to_rank == own)) {
        const PayloadLayout& layout = messages.boundaries[boundary];
        channels.push_back({id, layout.bytes(), SlotsNeeded(lowered, id.kind, boundary), layout});
      }
    }
  }
  // Two slots suffice: a rank sends its next terms (its next tied gradient) only after it took those that the receiver
  // sent after taking the last ones, so one message can arrive while the last is being read.
  constexpr int32_t kSlotsPerIteration = 2;
  const auto add_both_ways = [&](MessageKind kind, int32_t other, int64_t own_bytes, int64_t other_bytes,
                                 const std::optional<PayloadLayout>& layout) {
    channels.push_back({{kind, 0, own, pipeline[other]}, own_bytes, kSlotsPerIteration, layout});
    channels.push_back({{kind, 0, pipeline[other], own}, other_bytes, kSlotsPerIteration, layout});
  };
  for (int32_t other = 0; other < std::ssize(messages.norm_bytes); ++other) {
    if (other != pipeline_rank) {
      add_both_ways(MessageKind::kNormTerms, other, messages.norm_bytes[pipeline_rank], messages.norm_bytes[other],
                    std::nullopt);
    }
  }
  const int32_t first = shape.placement.front();
  const int32_t last = shape.placement.back();
  const bool is_end = pipeline_rank == first || pipeline_rank == last;
  if (messages.tied_gradient.has_value() && first != last && is_end) {
    const int64_t bytes = messages.tied_gradient->bytes();
    add_both_ways(MessageKind::kTiedGradient, pipeline_rank == first ? last : first, bytes, bytes,
                  messages.tied_gradient);
  }
  return channels;
}

}  // namespace geopipe
