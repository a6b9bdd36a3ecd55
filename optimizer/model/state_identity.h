// Names a state of the job: the one before an iteration.
#pragma once

#include <compare>
#include <cstdint>

namespace geopipe {

struct StateIdentity {
  int64_t iteration = 0;  // it is the state before this
  // The epoch of the run in which the iteration before that was done, or that read the state from a checkpoint; 0:
  // none, it is the initial state. States of one run that are equal in both are of the same bits on all ranks; two
  // epochs may have come to the same iteration by different plans.
  uint64_t epoch = 0;

  friend auto operator<=>(const StateIdentity&, const StateIdentity&) = default;
};

}  // namespace geopipe
