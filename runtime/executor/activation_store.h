// What waits between two actions of one device: inputs that were received or made by another chunk of the device, and
// results on their way out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "optimizer/schedule/schedule.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Greatest number of tensors that wait at once when `device` runs its list of `lowered` in order.
size_t GreatestWaiting(const Schedule& lowered, int32_t device);

// Tensors by the action that will take them (B and I are one). Executor thread only.
class ActivationStore {
 public:
  // More than `capacity` tensors at once are a bug: the schedule says how many there can be.
  explicit ActivationStore(size_t capacity) : capacity_(capacity) {}

  struct Input {
    Tensor tensor;
    int64_t ready_ns = 0;  // since when it waits, monotonic; 0: it was made on this device
  };

  // REQUIRES: nothing waits for `taker` yet.
  void Put(const Action& taker, Tensor tensor, int64_t ready_ns = 0);
  // REQUIRES: Put was called for `taker`.
  Input Take(const Action& taker);

  size_t size() const { return waiting_.size(); }

 private:
  using Key = std::tuple<int32_t, ActionKind, int32_t>;
  static Key KeyOf(const Action& taker);

  size_t capacity_;
  std::map<Key, Input> waiting_;
};

}  // namespace geopipe
