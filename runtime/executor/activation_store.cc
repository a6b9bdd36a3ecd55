#include "runtime/executor/activation_store.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {

size_t MaxWaiting(const Schedule& lowered, int32_t pipeline_rank) {
  const int32_t last_stage = lowered.shape.stages - 1;
  int64_t waiting = 0;
  int64_t most = 0;
  for (const Action& action : lowered.devices[pipeline_rank]) {
    switch (action.kind) {
      case ActionKind::kForward:  // takes its input, leaves its output
        waiting += (action.stage == last_stage ? 0 : 1) - (action.stage == 0 ? 0 : 1);
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        waiting += (action.stage == 0 ? 0 : 1) - (action.stage == last_stage ? 0 : 1);
        break;
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        ++waiting;
        break;
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        --waiting;
        break;
      case ActionKind::kWeightGradient:
        break;
    }
    most = std::max(most, waiting);
  }
  return static_cast<size_t>(most);
}

ActivationStore::Key ActivationStore::KeyOf(const Action& taker) {
  const ActionKind kind = taker.kind == ActionKind::kBackward ? ActionKind::kInputGradient : taker.kind;
  return {taker.stage, kind, taker.micro_batch};
}

void ActivationStore::Put(const Action& taker, Timed<Tensor> tensor) {
  GP_CHECK(waiting_.size() < capacity_, "{} tensors wait, the schedule allows {}", waiting_.size() + 1, capacity_);
  const bool inserted = waiting_.emplace(KeyOf(taker), std::move(tensor)).second;
  GP_CHECK(inserted, "two inputs for {}", ToString(taker));
}

Timed<Tensor> ActivationStore::Take(const Action& taker) {
  auto node = waiting_.extract(KeyOf(taker));
  GP_CHECK(!node.empty(), "no input for {}", ToString(taker));
  return std::move(node.mapped());
}

}  // namespace geopipe
