// Inputs of actions, as indices into one flat table of outputs: the forward output and the backward output (input
// gradient) of every stage and micro-batch. Validator and simulator share it, so they cannot disagree.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

inline constexpr int64_t kNoInput = -1;

// Indices run over [0, 2 * stages * micro_batches): forward outputs first, stage-major.
class OutputTable {
 public:
  explicit OutputTable(const PipelineShape& shape) : stages_(shape.stages), micro_batches_(shape.micro_batches) {}

  int64_t size() const { return 2 * stages_ * micro_batches_; }
  int64_t Forward(int64_t stage, int64_t micro_batch) const { return stage * micro_batches_ + micro_batch; }
  int64_t Backward(int64_t stage, int64_t micro_batch) const { return Forward(stages_ + stage, micro_batch); }

  // The output that a compute action makes: F its activation, B and I the input gradient; kNoInput for W.
  int64_t OutputOf(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return Forward(action.stage, action.micro_batch);
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        return Backward(action.stage, action.micro_batch);
      default:
        return kNoInput;
    }
  }

  // The output that a compute action waits for. The backward of the last stage waits for its own forward, W for its
  // own I; every other backward follows its own forward through the chain of messages.
  int64_t InputOf(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        return action.stage == 0 ? kNoInput : Forward(action.stage - 1, action.micro_batch);
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        return action.stage == stages_ - 1 ? Forward(action.stage, action.micro_batch)
                                           : Backward(action.stage + 1, action.micro_batch);
      case ActionKind::kWeightGradient:
        return Backward(action.stage, action.micro_batch);
      default:
        return kNoInput;
    }
  }

  bool IsBackward(int64_t output) const { return output >= stages_ * micro_batches_; }
  int32_t Stage(int64_t output) const { return static_cast<int32_t>(output / micro_batches_ % stages_); }
  int32_t MicroBatch(int64_t output) const { return static_cast<int32_t>(output % micro_batches_); }

 private:
  int64_t stages_;
  int64_t micro_batches_;
};

// Explains why a schedule cannot proceed, given for each device the position of the action it is stuck at (the length
// of its list when it has finished): the cycle of actions that wait for each other, from one back to itself, with the
// remedy, or the output that no action makes. REQUIRES: at least one device is stuck, every stuck action is a compute
// action with an input that is not made yet.
std::string DescribeDeadlock(const Schedule& schedule, std::span<const int64_t> stuck_position);

}  // namespace geopipe
