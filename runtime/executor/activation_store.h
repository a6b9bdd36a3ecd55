// Tensors that wait between two actions of one rank: inputs that were received or made by another of its stages, and
// results to be sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "optimizer/schedule/schedule.h"
#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Largest number of tensors that wait at once when `pipeline_rank` runs its list of `lowered` in order.
size_t MaxWaiting(const Schedule& lowered, int32_t pipeline_rank);

// Tensors by the action that will take them (B and I are one). Executor thread only.
class ActivationStore {
 public:
  // `capacity`: greatest number of tensors at once, by the schedule; more are a bug.
  explicit ActivationStore(size_t capacity) : capacity_(capacity) {}

  // REQUIRES: nothing waits for `taker` yet.
  void Put(const Action& taker, Timed<Tensor> tensor);
  // REQUIRES: Put was called for `taker`.
  Timed<Tensor> Take(const Action& taker);

  size_t size() const { return waiting_.size(); }

 private:
  using Key = std::tuple<int32_t, ActionKind, int32_t>;
  static Key KeyOf(const Action& taker);

  size_t capacity_;
  std::map<Key, Timed<Tensor>> waiting_;
};

}  // namespace geopipe
