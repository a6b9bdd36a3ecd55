#include "optimizer/schedule/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/dependencies.h"
#include "optimizer/schedule/lower_device.h"

namespace geopipe {
namespace {

// Actions that a stage has run of one micro-batch, as a set of compute kinds.
constexpr uint8_t Bit(ActionKind kind) { return static_cast<uint8_t>(1U << static_cast<unsigned>(kind)); }
constexpr uint8_t kForwardDone = Bit(ActionKind::kForward);
constexpr uint8_t kBackwardDone = Bit(ActionKind::kBackward);
constexpr uint8_t kInputDone = Bit(ActionKind::kInputGradient);
constexpr uint8_t kWeightDone = Bit(ActionKind::kWeightGradient);

class Validator {
 public:
  Validator(const Schedule& schedule, const ActivationLimits& limits, ScheduleFault* fault, ScheduleWork work)
      : schedule_(schedule),
        shape_(schedule.shape),
        limits_(limits),
        fault_(fault),
        work_(work),
        outputs_(schedule.shape) {}

  absl::Status Run() {
    GP_RETURN_IF_ERROR(ValidateShape(shape_));
    if (std::ssize(schedule_.devices) != shape_.devices) {
      return absl::InvalidArgumentError(fmt::format("schedule has {} lists of actions: it needs {}, one per device",
                                                    schedule_.devices.size(), shape_.devices));
    }
    const size_t limit_count = limits_.in_flight_per_device.size();
    GP_CHECK(limit_count == 0 || limit_count == schedule_.devices.size(), "{} limits for {} devices", limit_count,
             schedule_.devices.size());
    done_.assign(static_cast<size_t>(outputs_.size() / 2), 0);
    next_backward_.assign(static_cast<size_t>(shape_.stages), 0);
    next_weight_.assign(static_cast<size_t>(shape_.stages), 0);
    for (int32_t device = 0; device < shape_.devices; ++device) {
      GP_RETURN_IF_ERROR(CheckDevice(device));
    }
    GP_RETURN_IF_ERROR(CheckComplete());
    GP_RETURN_IF_ERROR(CheckCommunication());
    return CheckDeadlock();
  }

 private:
  // `stuck`: positions that the grid marks too, one per device.
  absl::Status Fault(int32_t device, int64_t position, std::string_view what,
                     std::span<const int64_t> stuck = {}) const {
    if (fault_ != nullptr) {
      *fault_ = {device, position};
    }
    const auto& actions = schedule_.devices[device];
    const std::string cell = position < std::ssize(actions) ? ToString(actions[position]) : "end of the list";
    return absl::InvalidArgumentError(fmt::format("schedule, device {} position {}, {}: {}\n{}", device, position, cell,
                                                  what, RenderGrid(schedule_, device, position, stuck)));
  }

  uint8_t& Done(const Action& action) { return done_[outputs_.Forward(action.stage, action.micro_batch)]; }

  absl::Status CheckDevice(int32_t device) {
    const std::vector<Action>& actions = schedule_.devices[device];
    int64_t in_flight = 0;
    for (int64_t position = 0; position < std::ssize(actions); ++position) {
      const Action& action = actions[position];
      if (std::string fault = RangeFault(action, device); !fault.empty()) {
        return Fault(device, position, fault);
      }
      if (!IsCompute(action.kind)) {
        has_communication_ = true;
        continue;
      }
      if (std::string fault = OrderFault(action); !fault.empty()) {
        return Fault(device, position, fault);
      }
      Done(action) |= Bit(action.kind);
      if (action.kind == ActionKind::kForward) {
        ++in_flight;
        if (!limits_.in_flight_per_device.empty() && in_flight > limits_.in_flight_per_device[device]) {
          return Fault(device, position,
                       fmt::format("{} micro-batches in flight, and memory allows {}", in_flight,
                                   limits_.in_flight_per_device[device]));
        }
      } else if (action.kind != ActionKind::kWeightGradient) {
        --in_flight;
      }
    }
    return absl::OkStatus();
  }

  std::string RangeFault(const Action& action, int32_t device) const {
    if (action.kind > ActionKind::kRecvBackward) {
      return fmt::format("kind {} is unknown", static_cast<int>(action.kind));
    }
    if (action.stage < 0 || action.stage >= shape_.stages) {
      return fmt::format("stage must lie between 0 and {}", shape_.stages - 1);
    }
    if (action.micro_batch < 0 || action.micro_batch >= shape_.micro_batches) {
      return fmt::format("micro-batch must lie between 0 and {}", shape_.micro_batches - 1);
    }
    if (shape_.placement[action.stage] != device) {
      return fmt::format("stage {} is placed on device {}", action.stage, shape_.placement[action.stage]);
    }
    return {};
  }

  // The fault of running `action` after all that its device ran before; empty: none.
  std::string OrderFault(const Action& action) {
    const uint8_t done = Done(action);
    const auto [stage, kind, micro_batch] = action;
    if ((done & Bit(kind)) != 0) {
      return "runs a second time";
    }
    if (work_ == ScheduleWork::kForwards && kind != ActionKind::kForward) {
      return "an evaluation has forwards alone";
    }
    if (kind == ActionKind::kForward) {
      // A backward needs its forward before it, so nothing of this micro-batch has run.
      return {};
    }
    if ((done & kForwardDone) == 0) {
      return fmt::format("runs before its forward {}F{}", stage, micro_batch);
    }
    if (kind == ActionKind::kBackward ? (done & (kInputDone | kWeightDone)) != 0 : (done & kBackwardDone) != 0) {
      return fmt::format("micro-batch {} has both a full backward and a split one", micro_batch);
    }
    if (kind == ActionKind::kWeightGradient && (done & kInputDone) == 0) {
      return fmt::format("runs before its input gradient {}I{}", stage, micro_batch);
    }
    if (kind != ActionKind::kWeightGradient && micro_batch != next_backward_[stage]++) {
      return fmt::format("backwards of a stage run in micro-batch order: {} is next", next_backward_[stage] - 1);
    }
    if (kind != ActionKind::kInputGradient && micro_batch != next_weight_[stage]++) {
      return fmt::format("weight gradients of a stage accumulate in micro-batch order: {} is next",
                         next_weight_[stage] - 1);
    }
    return {};
  }

  absl::Status CheckComplete() {
    for (int32_t stage = 0; stage < shape_.stages; ++stage) {
      for (int32_t micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch) {
        const uint8_t done = done_[outputs_.Forward(stage, micro_batch)];
        if (work_ == ScheduleWork::kForwards
                ? done == kForwardDone
                : done == (kForwardDone | kBackwardDone) || done == (kForwardDone | kInputDone | kWeightDone)) {
          continue;
        }
        const std::string_view missing = (done & kForwardDone) == 0 ? "F" : (done & kInputDone) == 0 ? "B" : "W";
        const int32_t device = shape_.placement[stage];
        return Fault(device, std::ssize(schedule_.devices[device]),
                     fmt::format("{}{}{} never runs", stage, missing, micro_batch));
      }
    }
    return absl::OkStatus();
  }

  // REQUIRES: complete and ordered, so that matching each device's list matches every SEND with its RECV.
  absl::Status CheckCommunication() const {
    if (!has_communication_) {
      return absl::OkStatus();
    }
    for (int32_t device = 0; device < shape_.devices; ++device) {
      const std::vector<Action>& actions = schedule_.devices[device];
      std::vector<Action> compute;
      compute.reserve(actions.size());
      std::copy_if(actions.begin(), actions.end(), std::back_inserter(compute),
                   [](const Action& action) { return IsCompute(action.kind); });
      const std::vector<Action> expected = LowerDevice(shape_, compute);
      const auto [actual_at, expected_at] =
          std::mismatch(actions.begin(), actions.end(), expected.begin(), expected.end());
      if (actual_at != actions.end() || expected_at != expected.end()) {
        const std::string what =
            expected_at == expected.end()
                ? "no action of this device needs it here"
                : fmt::format(
                      "{} belongs here: a RECV stands right before the action that needs its message, a SEND "
                      "right after the action that makes it",
                      ToString(*expected_at));
        return Fault(device, actual_at - actions.begin(), what);
      }
    }
    return absl::OkStatus();
  }

  // Runs every device's list as far as its inputs allow, without times.
  absl::Status CheckDeadlock() {
    std::vector<uint8_t> made(static_cast<size_t>(outputs_.size()), 0);
    std::vector<int64_t> position(schedule_.devices.size(), 0);
    std::vector<int64_t> waits_for(schedule_.devices.size(), kNoInput);
    std::vector<int32_t> runnable(schedule_.devices.size());
    for (int32_t device = 0; device < shape_.devices; ++device) {
      runnable[device] = shape_.devices - 1 - device;
    }
    while (!runnable.empty()) {
      const int32_t device = runnable.back();
      runnable.pop_back();
      waits_for[device] = kNoInput;
      const std::vector<Action>& actions = schedule_.devices[device];
      int64_t& at = position[device];
      for (; at < std::ssize(actions); ++at) {
        if (!IsCompute(actions[at].kind)) {
          continue;
        }
        const int64_t input = outputs_.InputOf(actions[at]);
        if (input != kNoInput && made[input] == 0) {
          waits_for[device] = input;
          break;
        }
        const int64_t output = outputs_.OutputOf(actions[at]);
        if (output == kNoInput) {
          continue;
        }
        made[output] = 1;
        const int32_t consumer = Consumer(output);
        if (consumer >= 0 && waits_for[consumer] == output) {
          waits_for[consumer] = kNoInput;
          runnable.push_back(consumer);
        }
      }
    }
    for (int32_t device = 0; device < shape_.devices; ++device) {
      if (position[device] < std::ssize(schedule_.devices[device])) {
        return Fault(device, position[device], DescribeDeadlock(schedule_, position), position);
      }
    }
    return absl::OkStatus();
  }

  // The device that waits for an output of another device's stage; -1: none.
  int32_t Consumer(int64_t output) const {
    const int32_t stage = outputs_.Stage(output);
    const int32_t next = outputs_.IsBackward(output) ? stage - 1 : stage + 1;
    return next < 0 || next >= shape_.stages ? -1 : shape_.placement[next];
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  const ActivationLimits& limits_;
  ScheduleFault* const fault_;
  const ScheduleWork work_;
  const OutputTable outputs_;
  std::vector<uint8_t> done_;           // [stage * micro_batches + micro_batch]
  std::vector<int32_t> next_backward_;  // [stage]: micro-batch whose B or I is next
  std::vector<int32_t> next_weight_;    // [stage]: micro-batch whose B or W is next
  bool has_communication_ = false;
};

// [first, last) of at most `most` of `count` items, around `centre`.
std::pair<int64_t, int64_t> Window(int64_t count, int64_t most, int64_t centre) {
  const int64_t first = std::clamp<int64_t>(centre - most / 2, 0, std::max<int64_t>(0, count - most));
  return {first, std::min(count, first + most)};
}

}  // namespace

absl::Status Validate(const Schedule& schedule, const ActivationLimits& limits, ScheduleFault* fault,
                      ScheduleWork work) {
  return Validator(schedule, limits, fault, work).Run();
}

std::string RenderGrid(const Schedule& schedule, int32_t fault_device, int64_t fault_position,
                       std::span<const int64_t> stuck) {
  constexpr int64_t kMaxRows = 64;
  constexpr int64_t kMaxColumns = 256;
  const auto cell_text = [&](int64_t device, int64_t position) {
    const auto& actions = schedule.devices[device];
    const bool there = position < std::ssize(actions);
    const std::string cell = there ? ToString(actions[position]) : "";
    const bool marked = (device == fault_device && position == fault_position) ||
                        (there && device < std::ssize(stuck) && position == stuck[device]);
    return marked ? ">" + cell + "<" : cell;
  };
  const auto device_count = std::ssize(schedule.devices);
  const auto [first_row, last_row] = Window(device_count, kMaxRows, fault_device);
  int64_t length = fault_position + 1;
  for (int64_t device = first_row; device < last_row; ++device) {
    length = std::max<int64_t>(length, std::ssize(schedule.devices[device]));
  }
  const auto [first_column, last_column] = Window(length, kMaxColumns, fault_position);
  size_t width = 3;
  for (int64_t device = first_row; device < last_row; ++device) {
    for (int64_t position = first_column; position < last_column; ++position) {
      width = std::max(width, cell_text(device, position).size());
    }
  }
  std::string grid;
  if (first_row > 0 || last_row < device_count || first_column > 0 || last_column < length) {
    grid = fmt::format("(devices {} to {} of {}, positions {} to {} of {})\n", first_row, last_row - 1, device_count,
                       first_column, last_column - 1, length);
  }
  for (int64_t device = first_row; device < last_row; ++device) {
    std::string row = fmt::format("device {:>3} |", device);
    for (int64_t position = first_column; position < last_column; ++position) {
      row += fmt::format(" {:<{}}", cell_text(device, position), width);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    grid += row + '\n';
  }
  return grid;
}

}  // namespace geopipe
