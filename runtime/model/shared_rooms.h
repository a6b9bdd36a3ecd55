// Memory on the device that the stages of a rank take turns in, besides what their passes need.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "optimizer/model/parameter_buckets.h"
#include "runtime/model/whole_buckets.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Room for the run of offloaded optimizer states that is being updated. Executor thread only.
class StateRoom {
 public:
  // `allocator` outlives the room, whose memory is its workspace. No run is longer than `max_elements`.
  StateRoom(Allocator& allocator, int64_t max_elements) : allocator_(allocator), max_elements_(max_elements) {}

  // Makes room for runs of `vectors` vectors, each of `elements` in all. Errors are the allocator's.
  absl::Status Reserve(int64_t vectors, int64_t elements);

  int64_t max_elements() const { return max_elements_; }
  // The i-th vector of a run of `elements` elements. REQUIRES: there is room for it.
  Tensor Vector(int64_t i, int64_t elements) const { return memory_.Part(i * elements, {elements}); }

 private:
  Allocator& allocator_;
  const int64_t max_elements_;
  Tensor memory_;  // fp32
};

struct SharedRooms {
  // `allocator` outlives them.
  explicit SharedRooms(Allocator& allocator, int64_t max_run_elements = kOffloadedRunElements)
      : whole_buckets(allocator), states(allocator, max_run_elements) {}

  WholeBuckets whole_buckets;
  StateRoom states;
};

}  // namespace geopipe
