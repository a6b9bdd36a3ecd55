#include "runtime/executor/channels.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "optimizer/base/check.h"
#include "optimizer/model/transformer.h"
#include "runtime/executor/norm_message.h"

namespace geopipe {
namespace {

// A stage leaves an iteration only when the others have done their part of it, so messages of more than two iterations
// never wait together.
constexpr int kIterations = 2;

// The channel of a communication action.
ChannelId ChannelOf(const PipelineShape& shape, const Action& action) {
  switch (action.kind) {
    case ActionKind::kSendForward:
      return ActivationChannel(shape, action.stage);
    case ActionKind::kRecvForward:
      return ActivationChannel(shape, action.stage - 1);
    case ActionKind::kSendBackward:
      return GradientChannel(shape, action.stage - 1);
    default:
      return GradientChannel(shape, action.stage);
  }
}

// Runs all lists, each device as far as its inputs allow, and follows what every device can know about how many
// messages of one channel its receiver has taken: knowledge travels with every message.
class KnowledgeRun {
 public:
  KnowledgeRun(const Schedule& schedule, const ChannelId& id)
      : schedule_(schedule), id_(id), devices_(schedule.devices.size()) {}

  int32_t GreatestOutstanding() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t device = 0; device < devices_.size(); ++device) {
        while (Step(device)) {
          progress = true;
        }
      }
    }
    return greatest_;
  }

 private:
  struct Device {
    int iteration = 0;
    size_t position = 0;
    int32_t known_taken = 0;
  };
  using MessageKey = std::tuple<ChannelId, int, int32_t>;

  bool Step(size_t index) {
    Device& device = devices_[index];
    const std::vector<Action>& actions = schedule_.devices[index];
    if (device.iteration == kIterations || actions.empty()) {
      return false;
    }
    const Action& action = actions[device.position];
    if (IsSend(action.kind)) {
      Send(device, action);
    } else if (IsRecv(action.kind) && !Receive(device, action)) {
      return false;
    }
    if (++device.position == actions.size()) {
      device.position = 0;
      ++device.iteration;
    }
    return true;
  }

  void Send(Device& device, const Action& action) {
    const ChannelId channel = ChannelOf(schedule_.shape, action);
    if (channel == id_) {
      ++sent_;
      greatest_ = std::max(greatest_, sent_ - device.known_taken);
    }
    in_flight_[{channel, device.iteration, action.micro_batch}] = device.known_taken;
  }

  bool Receive(Device& device, const Action& action) {
    const ChannelId channel = ChannelOf(schedule_.shape, action);
    const auto message = in_flight_.find({channel, device.iteration, action.micro_batch});
    if (message == in_flight_.end()) {
      return false;
    }
    device.known_taken = std::max(device.known_taken, message->second);
    in_flight_.erase(message);
    if (channel == id_) {
      device.known_taken = ++taken_;
    }
    return true;
  }

  const Schedule& schedule_;
  const ChannelId id_;
  std::vector<Device> devices_;
  std::map<MessageKey, int32_t> in_flight_;  // to what its sender knew
  int32_t sent_ = 0;
  int32_t taken_ = 0;
  int32_t greatest_ = 0;
};

}  // namespace

ChannelId ActivationChannel(const PipelineShape& shape, int32_t boundary) {
  return {MessageKind::kActivation, boundary, shape.placement[boundary], shape.placement[boundary + 1]};
}

ChannelId GradientChannel(const PipelineShape& shape, int32_t boundary) {
  return {MessageKind::kGradient, boundary, shape.placement[boundary + 1], shape.placement[boundary]};
}

ChannelSizes SizesOfPlan(const Plan& plan, const ModelSpec& model, int64_t element_bytes, bool norms) {
  ChannelSizes sizes;
  const int64_t boundary_bytes = plan.micro_batch_size * plan.sequence_length * model.hidden_size * element_bytes;
  sizes.boundary_bytes.assign(plan.stages.size() - 1, boundary_bytes);
  for (const StagePlan& stage : plan.stages) {
    if (norms) {
      std::vector<NormTerm> terms;
      for (const ParameterTensor& tensor : ParameterTensors(model, stage.layers)) {
        terms.push_back({tensor.name, 0});
      }
      sizes.norm_bytes.push_back(NormMessageBytes(terms));
    }
  }
  if (model.tie_word_embeddings && plan.stages.size() > 1) {
    sizes.tied_gradient_bytes = model.vocab_size * model.hidden_size * 4;  // accumulated in fp32
  }
  return sizes;
}

int32_t SlotsNeeded(const Schedule& lowered, const ChannelId& id) {
  return KnowledgeRun(lowered, id).GreatestOutstanding();
}

std::vector<ChannelSpec> ChannelsOfStage(const Schedule& lowered, int32_t stage, const ChannelSizes& sizes) {
  const PipelineShape& shape = lowered.shape;
  GP_CHECK(std::ssize(sizes.boundary_bytes) == shape.chunks - 1, "{} sizes for {} chunks", sizes.boundary_bytes.size(),
           shape.chunks);
  std::vector<ChannelSpec> channels;
  for (int32_t boundary = 0; boundary + 1 < shape.chunks; ++boundary) {
    for (const ChannelId& id : {ActivationChannel(shape, boundary), GradientChannel(shape, boundary)}) {
      if (id.from_rank != id.to_rank && (id.from_rank == stage || id.to_rank == stage)) {
        channels.push_back({id, sizes.boundary_bytes[boundary], SlotsNeeded(lowered, id)});
      }
    }
  }
  // A stage sends its next terms (its next tied gradient) only when it has taken those that the receiver sent after
  // taking the last ones; two slots let the next arrive while the last is looked at.
  constexpr int32_t kSlotsPerIteration = 2;
  for (int32_t other = 0; other < std::ssize(sizes.norm_bytes); ++other) {
    if (other != stage) {
      channels.push_back({{MessageKind::kNormTerms, 0, stage, other}, sizes.norm_bytes[stage], kSlotsPerIteration});
      channels.push_back({{MessageKind::kNormTerms, 0, other, stage}, sizes.norm_bytes[other], kSlotsPerIteration});
    }
  }
  const int32_t first = shape.placement.front();
  const int32_t last = shape.placement.back();
  if (sizes.tied_gradient_bytes > 0 && first != last && (stage == first || stage == last)) {
    for (const ChannelId& id : {ChannelId{MessageKind::kTiedGradient, 0, first, last},
                                ChannelId{MessageKind::kTiedGradient, 0, last, first}}) {
      channels.push_back({id, sizes.tied_gradient_bytes, kSlotsPerIteration});
    }
  }
  return channels;
}

}  // namespace geopipe
