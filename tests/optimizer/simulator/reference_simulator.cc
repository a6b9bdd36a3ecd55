#include "tests/optimizer/simulator/reference_simulator.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// (backward?, producing stage, micro-batch)
using MessageId = std::tuple<bool, int32_t, int32_t>;

struct Message {
  MessageId id;
  int32_t producer = 0;  // device
  int64_t number = 0;    // order of production
  bool entered = false;
  bool arrived = false;
  int64_t arrive_ns = kNever;
};

struct DeviceState {
  std::vector<Action> actions;
  size_t next = 0;  // first action that has not started
  bool running = false;
  int64_t end_ns = kNever;
  bool held = false;
  MessageId held_by;
};

class Book {
 public:
  Book(const Schedule& schedule, const PipelineCosts& costs) : costs_(costs), devices_(schedule.devices.size()) {
    for (size_t device = 0; device < devices_.size(); ++device) {
      for (const Action& action : schedule.devices[device]) {
        if (IsCompute(action.kind)) {
          devices_[device].actions.push_back(action);
        }
      }
    }
    result_.times.resize(devices_.size());
  }

  ReferenceResult Run() {
    while (now_ns_ != kNever) {
      while (Round()) {
      }
      now_ns_ = NextInstant();
    }
    for (const DeviceState& device : devices_) {
      result_.deadlock = result_.deadlock || device.next < device.actions.size();
    }
    return result_;
  }

 private:
  bool Round() {
    bool happened = Ends();
    happened = Entries() || happened;
    happened = Arrivals() || happened;
    return Starts() || happened;
  }

  bool Ends() {
    bool happened = false;
    for (size_t device = 0; device < devices_.size(); ++device) {
      DeviceState& state = devices_[device];
      if (state.running && state.end_ns == now_ns_) {
        state.running = false;
        result_.end_ns = std::max(result_.end_ns, now_ns_);
        Finish(static_cast<int32_t>(device), state.actions[state.next - 1]);
        happened = true;
      }
    }
    return happened;
  }

  void Finish(int32_t device, const Action& action) {
    done_.insert({action.kind, action.stage, action.micro_batch});
    if (action.kind == ActionKind::kWeightGradient) {
      return;
    }
    const bool backward = action.kind != ActionKind::kForward;
    const int32_t to = backward ? action.stage - 1 : action.stage + 1;
    if (to < 0 || to >= costs_.shape.stages || costs_.shape.placement[to] == device) {
      return;
    }
    Message message;
    message.id = {backward, action.stage, action.micro_batch};
    message.producer = device;
    message.number = static_cast<int64_t>(messages_.size());
    messages_.push_back(message);
    if (costs_.comm == CommMode::kBlocking) {
      devices_[device].held = true;
      devices_[device].held_by = message.id;
    }
  }

  bool Entries() {
    std::vector<Message*> entering;
    for (Message& message : messages_) {
      if (!message.entered && (costs_.comm != CommMode::kRendezvous || ReceiverReached(message))) {
        entering.push_back(&message);
      }
    }
    std::sort(entering.begin(), entering.end(), [](const Message* a, const Message* b) {
      return std::tie(a->producer, a->number) < std::tie(b->producer, b->number);
    });
    for (Message* const message : entering) {
      Enter(*message);
    }
    return !entering.empty();
  }

  bool ReceiverReached(const Message& message) const {
    const auto [backward, from, micro_batch] = message.id;
    const int32_t to = backward ? from - 1 : from + 1;
    const DeviceState& state = devices_[costs_.shape.placement[to]];
    if (state.running || state.next == state.actions.size()) {
      return false;
    }
    const Action& action = state.actions[state.next];
    const bool is_backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
    const bool same_kind = backward ? is_backward : action.kind == ActionKind::kForward;
    return same_kind && action.stage == to && action.micro_batch == micro_batch;
  }

  void Enter(Message& message) {
    const auto [backward, from, micro_batch] = message.id;
    const int32_t boundary = backward ? from - 1 : from;
    const int32_t to = backward ? from - 1 : from + 1;
    const BoundaryCost& cost = costs_.boundaries[boundary];
    message.entered = true;
    if (!cost.crosses && cost.overhead_ns == 0) {
      message.arrive_ns = now_ns_;
      return;
    }
    const std::string link = cost.link.empty() ? "private " + std::to_string(boundary) : "shared " + cost.link;
    int64_t& free_ns = fifo_free_ns_[{link, costs_.shape.placement[to] > costs_.shape.placement[from]}];
    const int64_t start_ns = std::max(now_ns_, free_ns);
    free_ns = start_ns + cost.serialization_ns;
    message.arrive_ns = free_ns + cost.latency_ns + cost.overhead_ns;
    ++result_.message_count;
    result_.arrival_sum_ns += message.arrive_ns;
  }

  bool Arrivals() {
    bool happened = false;
    for (Message& message : messages_) {
      if (message.entered && !message.arrived && message.arrive_ns == now_ns_) {
        message.arrived = true;
        arrived_.insert(message.id);
        DeviceState& producer = devices_[message.producer];
        if (producer.held && producer.held_by == message.id) {
          producer.held = false;
        }
        happened = true;
      }
    }
    return happened;
  }

  bool Starts() {
    bool happened = false;
    for (size_t device = 0; device < devices_.size(); ++device) {
      DeviceState& state = devices_[device];
      if (state.running || state.held || state.next == state.actions.size() || !HasInput(state.actions[state.next])) {
        continue;
      }
      state.running = true;
      state.end_ns = now_ns_ + DurationNs(state.actions[state.next]);
      result_.times[device].emplace_back(now_ns_, state.end_ns);
      ++state.next;
      happened = true;
    }
    return happened;
  }

  bool Done(ActionKind kind, int32_t stage, int32_t micro_batch) const {
    return done_.count({kind, stage, micro_batch}) > 0;
  }

  bool HasInput(const Action& action) const {
    const auto [stage, kind, micro_batch] = action;
    const auto& placement = costs_.shape.placement;
    if (kind == ActionKind::kWeightGradient) {
      return Done(ActionKind::kInputGradient, stage, micro_batch);
    }
    if (kind == ActionKind::kForward) {
      if (stage == 0) {
        return true;
      }
      return placement[stage - 1] == placement[stage] ? Done(ActionKind::kForward, stage - 1, micro_batch)
                                                      : arrived_.count({false, stage - 1, micro_batch}) > 0;
    }
    if (stage == costs_.shape.stages - 1) {
      return Done(ActionKind::kForward, stage, micro_batch);
    }
    if (placement[stage + 1] == placement[stage]) {
      return Done(ActionKind::kBackward, stage + 1, micro_batch) ||
             Done(ActionKind::kInputGradient, stage + 1, micro_batch);
    }
    return arrived_.count({true, stage + 1, micro_batch}) > 0;
  }

  int64_t DurationNs(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return costs_.forward_ns[action.stage];
      case ActionKind::kBackward:
        return costs_.BackwardNs(action.stage);
      case ActionKind::kInputGradient:
        return costs_.input_grad_ns[action.stage];
      default:
        return costs_.weight_grad_ns[action.stage];
    }
  }

  int64_t NextInstant() const {
    int64_t next_ns = kNever;
    for (const DeviceState& state : devices_) {
      if (state.running) {
        next_ns = std::min(next_ns, state.end_ns);
      }
    }
    for (const Message& message : messages_) {
      if (message.entered && !message.arrived) {
        next_ns = std::min(next_ns, message.arrive_ns);
      }
    }
    return next_ns;
  }

  const PipelineCosts& costs_;
  int64_t now_ns_ = 0;
  std::vector<DeviceState> devices_;
  std::vector<Message> messages_;
  std::map<std::pair<std::string, bool>, int64_t> fifo_free_ns_;
  std::set<std::tuple<ActionKind, int32_t, int32_t>> done_;
  std::set<MessageId> arrived_;
  ReferenceResult result_;
};

}  // namespace

ReferenceResult SimulateByTheBook(const Schedule& schedule, const PipelineCosts& costs) {
  return Book(schedule, costs).Run();
}

}  // namespace geopipe
