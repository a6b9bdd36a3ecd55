// Room for what ZeRO divides while it is whole: weights that were gathered, gradients before they are scattered. One of
// each kind besides what computes, so that they are gathered and scattered meanwhile.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "runtime/tensor/tensor.h"

namespace geopipe {

// All stages of a rank take turns in it. Executor thread only.
class WholeBuckets {
 public:
  struct Room {
    Tensor memory;  // fp32 [elements]; whoever takes the room may use it as any type
    // What its user has still to do before another gets it; empty: nothing. An error is the communicator's.
    std::function<absl::Status()> leave;
    uint64_t turn = 0;
  };

  // `allocator` outlives the rooms, whose memory is its workspace.
  explicit WholeBuckets(Allocator& allocator) : allocator_(allocator) {}

  // Makes at least so many rooms, each at least so large. Errors are the allocator's. REQUIRES: nobody is in them.
  absl::Status Reserve(size_t rooms, int64_t elements);

  // The room whose last turn is longest ago; its user has left it.
  absl::StatusOr<Room*> Take();
  // It is used: it is the last to be taken again.
  void Touch(Room& room) { room.turn = ++turns_; }
  // Everybody leaves.
  absl::Status Clear();
  // Everybody is gone, whatever there was left to do.
  void Abandon();

 private:
  static absl::Status Leave(Room& room);

  Allocator& allocator_;
  std::deque<Room> rooms_;
  uint64_t turns_ = 0;
};

}  // namespace geopipe
