#include "optimizer/scheduler/instance.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "optimizer/schedule/action.h"
#include "optimizer/simulator/routes.h"

namespace geopipe {
namespace {

// Room without a memory model: never full.
constexpr int64_t kBoundlessBytes = std::numeric_limits<int64_t>::max() / 4;

OutputRoute MakeOutputRoute(const Route& route, int32_t consumer) {
  OutputRoute made;
  made.fifo = route.fifo == kNoFifo ? -1 : route.fifo;
  made.ordered = route.ordered;
  made.consumer = consumer;
  made.serialization_ns = route.serialization_ns;
  made.latency_ns = route.latency_ns;
  return made;
}

void AddWork(const PipelineCosts& costs, int32_t stage, Instance& instance) {
  instance.duration_ns.push_back(costs.forward_ns[stage]);
  instance.duration_ns.push_back(costs.input_grad_ns[stage]);
  instance.duration_ns.push_back(instance.split ? costs.weight_grad_ns[stage] : 0);
  const int64_t activation_bytes = costs.memory.has_value() ? costs.memory->activation_bytes[stage] : 0;
  const int64_t kept_bytes = costs.memory.has_value() && instance.split ? costs.memory->wgrad_bytes[stage] : 0;
  instance.memory_bytes.push_back(activation_bytes);
  instance.memory_bytes.push_back(kept_bytes - activation_bytes);
  instance.memory_bytes.push_back(-kept_bytes);
  const int32_t last_stage = instance.stages - 1;
  instance.input.push_back(stage == 0 ? kNoOutput : stage - 1);
  instance.input.push_back(stage == last_stage ? stage : instance.stages + stage + 1);
  instance.input.push_back(kNoOutput);
  instance.output.push_back(stage);
  instance.output.push_back(stage == 0 ? kNoOutput : instance.stages + stage);
  instance.output.push_back(kNoOutput);
}

ActionKind KindOf(const Instance& instance, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return ActionKind::kForward;
    case Phase::kInput:
      return instance.split ? ActionKind::kInputGradient : ActionKind::kBackward;
    case Phase::kWeight:
      break;
  }
  return ActionKind::kWeightGradient;
}

}  // namespace

int64_t Instance::DeviceWorkNs(int32_t device) const {
  int64_t work_ns = 0;
  for (const int32_t stage : stages_of[device]) {
    for (int32_t phase = 0; phase < kPhases; ++phase) {
      work_ns += duration_ns[stage * kPhases + phase];
    }
  }
  return work_ns;
}

Instance MakeInstance(const PipelineCosts& costs) {
  PipelineCosts non_blocking = costs;
  non_blocking.comm = CommMode::kNonBlocking;
  const OperationTable table = BuildOperations(non_blocking);

  Instance instance;
  instance.devices = costs.shape.devices;
  instance.stages = costs.shape.stages;
  instance.micro_batches = costs.shape.micro_batches;
  instance.split = !costs.weight_grad_ns.empty();
  instance.device_of = costs.shape.placement;
  instance.stages_of.resize(static_cast<size_t>(instance.devices));
  instance.fifo_count = table.fifo_count;
  instance.routes.resize(2 * static_cast<size_t>(instance.stages));
  for (int32_t stage = 0; stage < instance.stages; ++stage) {
    instance.stages_of[instance.device_of[stage]].push_back(stage);
    AddWork(costs, stage, instance);
    const int32_t above = instance.device_of[std::min(stage + 1, instance.stages - 1)];
    const int32_t below = instance.device_of[std::max(stage - 1, 0)];
    const int32_t input_grad = instance.stages + stage;
    instance.routes[stage] = MakeOutputRoute(table.routes[stage], above);
    instance.routes[input_grad] = MakeOutputRoute(table.routes[input_grad], below);
  }
  for (int32_t device = 0; device < instance.devices; ++device) {
    instance.room_bytes.push_back(costs.memory.has_value()
                                      ? costs.memory->capacity_bytes[device] - costs.memory->static_bytes[device]
                                      : kBoundlessBytes);
  }
  const bool is_limited = costs.memory.has_value() && !costs.memory->most_in_flight.empty();
  instance.most_in_flight = is_limited
                                ? costs.memory->most_in_flight
                                : std::vector<int32_t>(static_cast<size_t>(instance.stages), instance.micro_batches);
  return instance;
}

Schedule ToSchedule(const Instance& instance, const PipelineShape& shape, const Sequences& sequences) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(sequences.size())};
  std::vector<int32_t> next(instance.duration_ns.size(), 0);
  for (size_t device = 0; device < sequences.size(); ++device) {
    schedule.devices[device].reserve(sequences[device].size());
    for (const WorkIndex work : sequences[device]) {
      schedule.devices[device].push_back({StageOf(work), KindOf(instance, PhaseOf(work)), next[work]++});
    }
  }
  return schedule;
}

bool ToSequences(const Instance& instance, const Schedule& schedule, Sequences& sequences) {
  sequences.assign(schedule.devices.size(), {});
  std::vector<int32_t> next_forward(static_cast<size_t>(instance.stages), 0);
  for (size_t device = 0; device < schedule.devices.size(); ++device) {
    std::vector<WorkIndex>& sequence = sequences[device];
    for (const Action& action : schedule.devices[device]) {
      switch (action.kind) {
        case ActionKind::kForward:
          if (action.micro_batch != next_forward[action.stage]++) {
            return false;
          }
          sequence.push_back(WorkOf(action.stage, Phase::kForward));
          break;
        case ActionKind::kBackward:
          sequence.push_back(WorkOf(action.stage, Phase::kInput));
          if (instance.split) {
            sequence.push_back(WorkOf(action.stage, Phase::kWeight));
          }
          break;
        case ActionKind::kInputGradient:
          sequence.push_back(WorkOf(action.stage, Phase::kInput));
          break;
        case ActionKind::kWeightGradient:
          sequence.push_back(WorkOf(action.stage, Phase::kWeight));
          break;
        default:
          return false;
      }
    }
  }
  return true;
}

bool RunsTooFarAhead(const Instance& instance, const Schedule& schedule) {
  std::vector<int32_t> in_flight(static_cast<size_t>(instance.stages), 0);
  for (const std::vector<Action>& actions : schedule.devices) {
    for (const Action& action : actions) {
      const bool begins = action.kind == ActionKind::kForward;
      const bool ends = action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
      in_flight[action.stage] += begins ? 1 : ends ? -1 : 0;
      if (in_flight[action.stage] > instance.most_in_flight[action.stage]) {
        return true;
      }
    }
  }
  return false;
}

bool Fits(const Instance& instance, const Sequences& sequences) {
  std::vector<int32_t> in_flight(static_cast<size_t>(instance.stages), 0);
  for (size_t device = 0; device < sequences.size(); ++device) {
    int64_t bytes = 0;
    int64_t peak_bytes = 0;
    for (const WorkIndex work : sequences[device]) {
      bytes += instance.memory_bytes[work];
      peak_bytes = std::max(peak_bytes, bytes);
      const int32_t stage = StageOf(work);
      in_flight[stage] += PhaseOf(work) == Phase::kForward ? 1 : PhaseOf(work) == Phase::kInput ? -1 : 0;
      if (in_flight[stage] > instance.most_in_flight[stage]) {
        return false;
      }
    }
    if (peak_bytes > instance.room_bytes[device]) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
