#include "runtime/executor/activation_store.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {

size_t GreatestWaiting(const Schedule& lowered, int32_t device) {
  const int32_t last_chunk = lowered.shape.chunks - 1;
  int64_t waiting = 0;
  int64_t greatest = 0;
  for (const Action& action : lowered.devices[device]) {
    switch (action.kind) {
      case ActionKind::kForward:  // takes its input, leaves its output
        waiting += (action.stage == last_chunk ? 0 : 1) - (action.stage == 0 ? 0 : 1);
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        waiting += (action.stage == 0 ? 0 : 1) - (action.stage == last_chunk ? 0 : 1);
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
    greatest = std::max(greatest, waiting);
  }
  return static_cast<size_t>(greatest);
}

ActivationStore::Key ActivationStore::KeyOf(const Action& taker) {
  const ActionKind kind = taker.kind == ActionKind::kBackward ? ActionKind::kInputGradient : taker.kind;
  return {taker.stage, kind, taker.micro_batch};
}

void ActivationStore::Put(const Action& taker, Tensor tensor, int64_t ready_ns) {
  GP_CHECK(waiting_.size() < capacity_, "{} tensors wait, the schedule allows {}", waiting_.size() + 1, capacity_);
  const bool inserted = waiting_.emplace(KeyOf(taker), Input{std::move(tensor), ready_ns}).second;
  GP_CHECK(inserted, "two inputs for {}", ToString(taker));
}

ActivationStore::Input ActivationStore::Take(const Action& taker) {
  auto node = waiting_.extract(KeyOf(taker));
  GP_CHECK(!node.empty(), "no input for {}", ToString(taker));
  return std::move(node.mapped());
}

}  // namespace geopipe
