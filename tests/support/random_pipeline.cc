#include "tests/support/random_pipeline.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

int64_t RandomDuration(std::mt19937_64& random) { return Draw(random, 0, 3) == 0 ? 0 : Draw(random, 1, 12); }

std::vector<int64_t> RandomVector(std::mt19937_64& random, int32_t count, int64_t low, int64_t high) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t& value : values) {
    value = Draw(random, low, high);
  }
  return values;
}

class RandomRun {
 public:
  RandomRun(std::mt19937_64& random, const PipelineShape& shape, bool split)
      : random_(random),
        shape_(shape),
        schedule_{shape, std::vector<std::vector<Action>>(shape.devices)},
        stages_(static_cast<size_t>(shape.stages)) {
    for (Stage& stage : stages_) {
      stage.forward_done.assign(static_cast<size_t>(shape.micro_batches), false);
      for (int32_t i = 0; i < shape.micro_batches; ++i) {
        stage.split.push_back(split && Draw(random, 0, 2) != 0);
      }
    }
  }

  Schedule Run() {
    for (std::vector<Action> ready = Ready(); !ready.empty(); ready = Ready()) {
      const Action action = ready[Draw(random_, 0, std::ssize(ready) - 1)];
      schedule_.devices[shape_.placement[action.stage]].push_back(action);
      Stage& stage = stages_[action.stage];
      switch (action.kind) {
        case ActionKind::kForward:
          stage.forward_done[action.micro_batch] = true;
          break;
        case ActionKind::kBackward:
          ++stage.backwards;
          ++stage.weights;
          break;
        case ActionKind::kInputGradient:
          ++stage.backwards;
          break;
        default:
          ++stage.weights;
      }
    }
    return std::move(schedule_);
  }

 private:
  struct Stage {
    std::vector<bool> forward_done;
    std::vector<bool> split;
    int32_t backwards = 0;  // B and I so far
    int32_t weights = 0;    // B and W so far
  };

  std::vector<Action> Ready() const {
    std::vector<Action> ready;
    for (int32_t c = 0; c < shape_.stages; ++c) {
      const Stage& stage = stages_[c];
      for (int32_t i = 0; i < shape_.micro_batches; ++i) {
        if (!stage.forward_done[i] && (c == 0 || stages_[c - 1].forward_done[i])) {
          ready.push_back({c, ActionKind::kForward, i});
        }
      }
      const int32_t i = stage.backwards;
      if (i < shape_.micro_batches && stage.forward_done[i] &&
          (c + 1 == shape_.stages || stages_[c + 1].backwards > i)) {
        if (stage.split[i]) {
          ready.push_back({c, ActionKind::kInputGradient, i});
        } else if (stage.weights == i) {
          ready.push_back({c, ActionKind::kBackward, i});
        }
      }
      if (stage.weights < stage.backwards) {
        ready.push_back({c, ActionKind::kWeightGradient, stage.weights});
      }
    }
    return ready;
  }

  std::mt19937_64& random_;
  const PipelineShape& shape_;
  Schedule schedule_;
  std::vector<Stage> stages_;
};

}  // namespace

PipelineShape RandomShape(std::mt19937_64& random) {
  PipelineShape shape;
  shape.devices = static_cast<int32_t>(Draw(random, 1, 5));
  shape.micro_batches = static_cast<int32_t>(Draw(random, 1, 6));
  if (Draw(random, 0, 1) == 0) {
    return PipelineShape::Linear(shape.devices, shape.micro_batches);
  }
  shape.stages = static_cast<int32_t>(Draw(random, 1, 8));
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    shape.placement.push_back(static_cast<int32_t>(Draw(random, 0, shape.devices - 1)));
  }
  return shape;
}

PipelineCosts RandomCosts(std::mt19937_64& random, const PipelineShape& shape) {
  PipelineCosts costs;
  costs.shape = shape;
  costs.comm = static_cast<CommMode>(Draw(random, 0, 2));
  const bool split = Draw(random, 0, 1) == 0;
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    costs.forward_ns.push_back(RandomDuration(random));
    costs.input_grad_ns.push_back(RandomDuration(random));
    if (split) {
      costs.weight_grad_ns.push_back(RandomDuration(random));
    }
  }
  // Mostly one or two shared links; all boundaries carry messages of one size.
  std::array<BoundaryCost, 2> shared;
  shared[0].link.push_back('a');
  shared[1].link.push_back('b');
  for (BoundaryCost& link : shared) {
    link.crosses = true;
    link.latency_ns = RandomDuration(random);
    link.serialization_ns = RandomDuration(random);
  }
  for (int32_t boundary = 0; boundary + 1 < shape.stages; ++boundary) {
    const int64_t choice = Draw(random, 0, 4);
    BoundaryCost cost;
    if (choice <= 2) {
      cost = shared[choice == 2 ? 1 : 0];
    } else if (choice == 3) {
      cost.crosses = true;
      cost.latency_ns = RandomDuration(random);
      cost.serialization_ns = RandomDuration(random);
    }
    cost.overhead_ns = Draw(random, 0, 2) == 0 ? RandomDuration(random) : 0;
    costs.boundaries.push_back(cost);
  }
  if (Draw(random, 0, 1) == 0) {
    costs.memory = MemoryCosts{RandomVector(random, shape.devices, 20, 60), RandomVector(random, shape.devices, 0, 9),
                               RandomVector(random, shape.stages, 0, 9), RandomVector(random, shape.stages, 0, 9)};
  }
  return costs;
}

Schedule RandomSchedule(std::mt19937_64& random, const PipelineShape& shape, bool split) {
  return RandomRun(random, shape, split).Run();
}

}  // namespace geopipe
