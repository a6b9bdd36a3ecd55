#include "optimizer/schedule/split_backward.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/schedule/dependencies.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int32_t kNoStage = -1;
// Slacks to try: the best depends on how the durations divide each other; the ends of the range matter most.
constexpr std::array<int32_t, 4> kSlacks16ths = {0, 1, 4, 12};

// Times at which the outputs of all stages are with the device that needs them.
class Arrivals {
 public:
  Arrivals(const PipelineShape& shape, const SplitCosts& costs)
      : shape_(shape),
        costs_(costs),
        outputs_(shape),
        arrival_ns_(static_cast<size_t>(outputs_.size()), kNever),
        link_free_ns_(2 * static_cast<size_t>(shape.stages), 0) {}

  // Time of the action's input; kNever while it is not made.
  int64_t InputNs(const Action& action) const {
    const int64_t input = outputs_.InputOf(action);
    return input == kNoInput ? 0 : arrival_ns_[input];
  }
  const OutputTable& outputs() const { return outputs_; }

  int64_t DurationNs(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return costs_.forward_ns[action.stage];
      case ActionKind::kInputGradient:
        return costs_.input_grad_ns[action.stage];
      case ActionKind::kWeightGradient:
        return costs_.weight_grad_ns[action.stage];
      default:
        return costs_.input_grad_ns[action.stage] + costs_.weight_grad_ns[action.stage];
    }
  }

  // Sends the output of `action` when it ended, and returns the device that waits for it; -1 if no other does.
  int32_t Make(const Action& action, int64_t end_ns) {
    const int64_t output = outputs_.OutputOf(action);
    if (output == kNoInput) {
      return -1;
    }
    const bool backward = outputs_.IsBackward(output);
    const int32_t to = backward ? action.stage - 1 : action.stage + 1;
    if (to < 0 || to >= shape_.stages || shape_.placement[to] == shape_.placement[action.stage]) {
      arrival_ns_[output] = end_ns;
      return -1;
    }
    const int32_t boundary = std::min(to, action.stage);
    int64_t& free_ns = link_free_ns_[2 * static_cast<size_t>(boundary) + (backward ? 1 : 0)];
    free_ns = std::max(free_ns, end_ns) + costs_.serialization_ns[boundary];
    arrival_ns_[output] = free_ns + costs_.latency_ns[boundary];
    return shape_.placement[to];
  }

 private:
  const PipelineShape& shape_;
  const SplitCosts& costs_;
  const OutputTable outputs_;
  std::vector<int64_t> arrival_ns_;    // [output]
  std::vector<int64_t> link_free_ns_;  // [2 * boundary + direction]
};

// First start and last end of every device.
class Spans {
 public:
  explicit Spans(int32_t devices) : spans_(static_cast<size_t>(devices), {kNever, 0}) {}

  void Add(int32_t device, int64_t start_ns, int64_t end_ns) {
    spans_[device].first = std::min(spans_[device].first, start_ns);
    spans_[device].second = std::max(spans_[device].second, end_ns);
  }

  TimedSchedule Time(Schedule schedule) const {
    TimedSchedule timed{std::move(schedule)};
    for (const auto& [first_ns, last_ns] : spans_) {
      timed.end_ns = std::max(timed.end_ns, last_ns);
      timed.longest_span_ns = std::max(timed.longest_span_ns, last_ns - std::min(first_ns, last_ns));
    }
    return timed;
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> spans_;
};

class GreedyRun {
 public:
  GreedyRun(const PipelineShape& shape, const SplitCosts& costs, const SplitLimits& limits, int32_t slack_16ths)
      : shape_(shape),
        costs_(costs),
        slack_16ths_(slack_16ths),
        arrivals_(shape, costs),
        spans_(shape.devices),
        devices_(static_cast<size_t>(shape.devices)),
        stages_(static_cast<size_t>(shape.stages)),
        lists_(static_cast<size_t>(shape.devices)) {
    for (int32_t stage = shape.stages - 1; stage >= 0; --stage) {
      devices_[shape.placement[stage]].stages.push_back(stage);
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      devices_[d].most_in_flight = limits.in_flight[d];
      devices_[d].most_units = std::min(limits.units[d], costs.cap_units[d]);
      lists_[d].reserve(3 * devices_[d].stages.size() * static_cast<size_t>(shape.micro_batches));
    }
  }

  TimedSchedule Run() {
    for (int32_t d = 0; d < shape_.devices; ++d) {
      Wake(d, 0);
    }
    while (!wakes_.empty()) {
      const auto [now_ns, d] = wakes_.top();
      wakes_.pop();
      if (devices_[d].wake_ns == now_ns) {
        devices_[d].wake_ns = kNever;
        Decide(d, now_ns);
      }
    }
    for (const Stage& stage : stages_) {
      GP_CHECK(stage.weights == shape_.micro_batches, "the greedy schedule stopped after {} of {} weight gradients",
               stage.weights, shape_.micro_batches);
    }
    return spans_.Time({shape_, std::move(lists_)});
  }

 private:
  struct Stage {  // how many have run, in micro-batch order
    int32_t forwards = 0;
    int32_t inputs = 0;
    int32_t weights = 0;
  };

  struct Device {
    std::vector<int32_t> stages;  // last first
    int64_t most_in_flight = 0;
    int64_t most_units = 0;
    int64_t in_flight = 0;  // from F to I
    int64_t units = 0;      // memory in use
    int64_t free_ns = 0;
    int64_t wake_ns = kNever;  // of its entries in wakes_ only the one at this time counts
  };

  void Wake(int32_t d, int64_t at_ns) {
    Device& device = devices_[d];
    at_ns = std::max(at_ns, device.free_ns);
    if (at_ns < device.wake_ns) {
      device.wake_ns = at_ns;
      wakes_.emplace(at_ns, d);
    }
  }

  // Starts an action on a device that is free, or lets it sleep until a message arrives or another device starts an
  // action.
  void Decide(int32_t d, int64_t now_ns) {
    Device& device = devices_[d];
    int64_t next_ns = kNever;  // when the next action that may run will have its input, as far as is known
    bool lacks_memory = false;
    const int32_t weight = PendingWeightGradient(device);
    if (const int32_t stage = ReadyInputGradient(device, now_ns, next_ns); stage != kNoStage) {
      const int64_t units = device.units + costs_.kept_units[stage] - kActivationUnits;
      if (weight == kNoStage || units <= std::max(device.units, device.most_units)) {
        return Start(d, {stage, ActionKind::kInputGradient, stages_[stage].inputs++}, now_ns);
      }
      lacks_memory = true;
    } else if (const int32_t forward = ReadyForward(device, now_ns, next_ns, lacks_memory); forward != kNoStage) {
      return Start(d, {forward, ActionKind::kForward, stages_[forward].forwards++}, now_ns);
    }
    if (weight != kNoStage) {
      const int64_t weight_ns = costs_.weight_grad_ns[weight];
      if (lacks_memory || next_ns == kNever || now_ns + weight_ns <= next_ns + weight_ns / 16 * slack_16ths_) {
        return Start(d, {weight, ActionKind::kWeightGradient, stages_[weight].weights++}, now_ns);
      }
    }
    if (next_ns != kNever) {
      Wake(d, next_ns);
    }
  }

  int32_t ReadyInputGradient(const Device& device, int64_t now_ns, int64_t& next_ns) const {
    for (const int32_t stage : device.stages) {
      if (stages_[stage].inputs == shape_.micro_batches) {
        continue;
      }
      const int64_t input_ns = arrivals_.InputNs({stage, ActionKind::kInputGradient, stages_[stage].inputs});
      if (input_ns <= now_ns) {
        return stage;
      }
      next_ns = std::min(next_ns, input_ns);
    }
    return kNoStage;
  }

  int32_t ReadyForward(const Device& device, int64_t now_ns, int64_t& next_ns, bool& lacks_memory) const {
    for (const int32_t stage : device.stages) {
      const int64_t room = stage == device.stages.front() ? 1 : 2;
      if (stages_[stage].forwards == shape_.micro_batches || device.in_flight + room > device.most_in_flight) {
        continue;
      }
      const int64_t input_ns = arrivals_.InputNs({stage, ActionKind::kForward, stages_[stage].forwards});
      if (device.units + room * kActivationUnits > device.most_units) {
        lacks_memory = lacks_memory || input_ns <= now_ns;
      } else if (input_ns <= now_ns) {
        return stage;
      } else {
        next_ns = std::min(next_ns, input_ns);
      }
    }
    return kNoStage;
  }

  int32_t PendingWeightGradient(const Device& device) const {
    for (const int32_t stage : device.stages) {
      if (stages_[stage].weights < stages_[stage].inputs) {
        return stage;
      }
    }
    return kNoStage;
  }

  void Start(int32_t d, const Action& action, int64_t now_ns) {
    Device& device = devices_[d];
    const int64_t end_ns = now_ns + arrivals_.DurationNs(action);
    if (action.kind == ActionKind::kForward) {
      ++device.in_flight;
      device.units += kActivationUnits;
    } else if (action.kind == ActionKind::kInputGradient) {
      --device.in_flight;
      device.units += costs_.kept_units[action.stage] - kActivationUnits;
    } else {
      device.units -= costs_.kept_units[action.stage];
    }
    lists_[d].push_back(action);
    spans_.Add(d, now_ns, end_ns);
    device.free_ns = end_ns;
    Wake(d, end_ns);
    // The receiver can count on the message from now on.
    if (const int32_t receiver = arrivals_.Make(action, end_ns); receiver >= 0) {
      Wake(receiver, now_ns);
    }
  }

  const PipelineShape& shape_;
  const SplitCosts& costs_;
  const int32_t slack_16ths_;
  Arrivals arrivals_;
  Spans spans_;
  std::vector<Device> devices_;
  std::vector<Stage> stages_;
  std::vector<std::vector<Action>> lists_;
  std::priority_queue<std::pair<int64_t, int32_t>, std::vector<std::pair<int64_t, int32_t>>, std::greater<>> wakes_;
};

}  // namespace

TimedSchedule Timed(Schedule schedule, const SplitCosts& costs) {
  Arrivals arrivals(schedule.shape, costs);
  Spans spans(schedule.shape.devices);
  std::vector<size_t> position(schedule.devices.size(), 0);
  std::vector<int64_t> free_ns(schedule.devices.size(), 0);
  std::vector<int64_t> waits_for(schedule.devices.size(), kNoInput);
  std::vector<int32_t> runnable(schedule.devices.size());
  for (int32_t d = 0; d < schedule.shape.devices; ++d) {
    runnable[d] = schedule.shape.devices - 1 - d;
  }
  while (!runnable.empty()) {
    const int32_t d = runnable.back();
    runnable.pop_back();
    const std::vector<Action>& actions = schedule.devices[d];
    for (waits_for[d] = kNoInput; position[d] < actions.size(); ++position[d]) {
      const Action& action = actions[position[d]];
      const int64_t input_ns = arrivals.InputNs(action);
      if (input_ns == kNever) {
        waits_for[d] = arrivals.outputs().InputOf(action);
        break;
      }
      const int64_t start_ns = std::max(free_ns[d], input_ns);
      free_ns[d] = start_ns + arrivals.DurationNs(action);
      spans.Add(d, start_ns, free_ns[d]);
      const int32_t receiver = arrivals.Make(action, free_ns[d]);
      if (receiver >= 0 && waits_for[receiver] == arrivals.outputs().OutputOf(action)) {
        waits_for[receiver] = kNoInput;
        runnable.push_back(receiver);
      }
    }
  }
  for (size_t d = 0; d < position.size(); ++d) {
    GP_CHECK(position[d] == schedule.devices[d].size(), "device {} is stuck at position {}", d, position[d]);
  }
  return spans.Time(std::move(schedule));
}

TimedSchedule ScheduleGreedily(const PipelineShape& shape, const SplitCosts& costs, const SplitLimits& limits,
                               int32_t slack_16ths) {
  return GreedyRun(shape, costs, limits, slack_16ths).Run();
}

Schedule AlternateDelayingWeights(const PipelineShape& shape, const SplitLimits& limits) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  const int32_t count = shape.micro_batches;
  for (int32_t device = 0; device < shape.devices; ++device) {
    const int64_t delay = limits.units[device] / kActivationUnits - limits.in_flight[device];
    std::vector<Action>& actions = schedule.devices[device];
    actions.reserve(3 * static_cast<size_t>(count));
    int32_t forwards = 0;
    int32_t weights = 0;
    for (int32_t inputs = 0; inputs < count; ++inputs) {
      while (forwards < std::min<int64_t>(count, inputs + limits.in_flight[device])) {
        actions.push_back({device, ActionKind::kForward, forwards++});
      }
      actions.push_back({device, ActionKind::kInputGradient, inputs});
      if (inputs >= delay) {
        actions.push_back({device, ActionKind::kWeightGradient, weights++});
      }
    }
    while (weights < count) {
      actions.push_back({device, ActionKind::kWeightGradient, weights++});
    }
  }
  return schedule;
}

bool CapsAllow(const SplitCosts& costs, const SplitLimits& limits) {
  return std::ranges::equal(costs.cap_units, limits.units, std::greater_equal<>());
}

void KeepBetter(TimedSchedule& best, TimedSchedule candidate) {
  if (std::pair(candidate.end_ns, candidate.longest_span_ns) < std::pair(best.end_ns, best.longest_span_ns)) {
    best = std::move(candidate);
  }
}

TimedSchedule BestOfSlacks(const PipelineShape& shape, const SplitCosts& costs, const SplitLimits& limits) {
  TimedSchedule best = ScheduleGreedily(shape, costs, limits, kSlacks16ths.front());
  for (size_t i = 1; i < kSlacks16ths.size(); ++i) {
    KeepBetter(best, ScheduleGreedily(shape, costs, limits, kSlacks16ths[i]));
  }
  return best;
}

}  // namespace geopipe
