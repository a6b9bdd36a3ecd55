#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "optimizer/plan/report/idle_causes.h"

namespace geopipe {
namespace {

struct Place {
  size_t device = 0;
  size_t position = 0;
};

class Chain {
 public:
  Chain(const SimulationResult& result, const PipelineCosts& costs) : result_(result), costs_(costs) {
    const auto outputs = static_cast<size_t>(costs.shape.stages) * static_cast<size_t>(costs.shape.micro_batches);
    for (size_t direction = 0; direction < makers_.size(); ++direction) {
      makers_[direction].resize(outputs);
      messages_[direction].assign(outputs, nullptr);
    }
    for (size_t device = 0; device < result.timeline.size(); ++device) {
      for (size_t position = 0; position < result.timeline[device].size(); ++position) {
        const Action& action = result.timeline[device][position].action;
        if (action.kind != ActionKind::kWeightGradient) {
          makers_[Direction(action)][Index(action.stage, action.micro_batch)] = Place{device, position};
        }
      }
    }
    for (const MessageTiming& message : result.messages) {
      const size_t direction = message.send.kind == ActionKind::kSendForward ? 0 : 1;
      messages_[direction][Index(message.send.stage, message.send.micro_batch)] = &message;
    }
  }

  std::vector<ChainSegment> Walk() {
    std::optional<Place> at = Last();
    while (at.has_value()) {
      const ActionTiming& timing = At(*at);
      Add(ChainSegment::Kind::kAction, static_cast<int32_t>(at->device), timing.start_ns, timing.end_ns);
      at = Before(*at);
    }
    std::reverse(segments_.begin(), segments_.end());
    return std::move(segments_);
  }

 private:
  static size_t Direction(const Action& action) { return action.kind == ActionKind::kForward ? 0 : 1; }

  size_t Index(int32_t stage, int32_t micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(costs_.shape.micro_batches) +
           static_cast<size_t>(micro_batch);
  }

  const ActionTiming& At(const Place& place) const { return result_.timeline[place.device][place.position]; }

  void Add(ChainSegment::Kind kind, int32_t index, int64_t begin_ns, int64_t end_ns) {
    if (begin_ns < end_ns) {
      segments_.push_back({kind, index, begin_ns, end_ns});
    }
  }

  // The action that ends last.
  std::optional<Place> Last() const {
    std::optional<Place> last;
    for (size_t device = 0; device < result_.timeline.size(); ++device) {
      const size_t actions = result_.timeline[device].size();
      if (actions > 0 && (!last.has_value() || result_.timeline[device].back().end_ns > At(*last).end_ns)) {
        last = Place{device, actions - 1};
      }
    }
    return last;
  }

  // Place of the action that makes the input of the one at `place`; nullopt when it needs none.
  std::optional<Place> Maker(const Place& place) const {
    const Action& action = At(place).action;
    const int32_t stage = action.stage + (action.kind == ActionKind::kForward ? -1 : 1);
    if (action.kind == ActionKind::kWeightGradient || stage < 0 || stage >= costs_.shape.stages) {
      return std::nullopt;
    }
    return makers_[Direction(action)][Index(stage, action.micro_batch)];
  }

  // The message that carries the output of `action` over a link; nullptr: none does.
  const MessageTiming* MessageOf(const Action& action) const {
    return action.kind == ActionKind::kWeightGradient
               ? nullptr
               : messages_[Direction(action)][Index(action.stage, action.micro_batch)];
  }

  static int32_t BoundaryAfter(const Action& action) {
    return action.stage - (action.kind == ActionKind::kForward ? 0 : 1);
  }

  // The action before which the one at `place` could not begin; adds the segments between the two.
  std::optional<Place> Before(const Place& place) {
    const int64_t start_ns = At(place).start_ns;
    std::optional<Place> previous;
    if (place.position > 0) {
      previous = Place{place.device, place.position - 1};
      if (At(*previous).end_ns == start_ns) {
        return previous;
      }
      const MessageTiming* sent = costs_.comm == CommMode::kBlocking ? MessageOf(At(*previous).action) : nullptr;
      const int32_t boundary = BoundaryAfter(At(*previous).action);
      if (sent != nullptr &&
          sent->arrive_ns + costs_.boundaries[static_cast<size_t>(boundary)].acknowledgement_ns == start_ns) {
        Add(ChainSegment::Kind::kHold, boundary, At(*previous).end_ns, start_ns);
        return previous;
      }
    }
    const std::optional<Place> maker = Maker(place);
    if (maker.has_value()) {
      Add(ChainSegment::Kind::kMessage, BoundaryAfter(At(*maker).action), At(*maker).end_ns, start_ns);
      return maker;
    }
    Add(ChainSegment::Kind::kAction, static_cast<int32_t>(place.device),
        previous.has_value() ? At(*previous).end_ns : 0, start_ns);
    return previous;
  }

  const SimulationResult& result_;
  const PipelineCosts& costs_;
  // Makers of forwards and backwards, [stage * micro-batches + micro-batch].
  std::array<std::vector<std::optional<Place>>, 2> makers_;
  std::array<std::vector<const MessageTiming*>, 2> messages_;
  std::vector<ChainSegment> segments_;
};

}  // namespace

std::vector<ChainSegment> LongestChain(const SimulationResult& result, const PipelineCosts& costs) {
  return Chain(result, costs).Walk();
}

}  // namespace geopipe
