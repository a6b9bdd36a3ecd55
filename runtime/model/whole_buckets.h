// Rooms for the parts that ZeRO divides, while they are whole: gathered weights, and gradients before they are
// scattered. One of each kind exists besides those that compute, so that gathering and scattering overlap with the
// work.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "runtime/tensor/tensor.h"

namespace geopipe {

// Rooms that all stages of a rank take turns in. Executor thread only.
class WholeBuckets {
 public:
  struct Room {
    Tensor memory;  // fp32 [elements]; its user may use it as any type
    // Finishes what its user still has to do before another gets the room; empty: nothing. An error is the
    // communicator's.
    std::function<absl::Status()> leave;
    uint64_t turn = 0;
  };

  // `allocator` outlives the rooms, whose memory is its workspace.
  explicit WholeBuckets(Allocator& allocator) : allocator_(allocator) {}

  // Makes at least `rooms` rooms, each of at least `elements`. Errors are the allocator's. REQUIRES: no room is in use.
  absl::Status Reserve(size_t rooms, int64_t elements);

  // The room that was used least recently; its user has left it.
  absl::StatusOr<Room*> Take();
  // Marks the room as used, so that Take returns it last.
  void Touch(Room& room) { room.turn = ++turns_; }
  // Makes all users leave, those that came first before others: two rooms may hold gradients of one bucket, which are
  // added in the order of their micro-batches.
  absl::Status Clear();
  // Makes all users leave, ignoring errors.
  void Abandon();

 private:
  static absl::Status Leave(Room& room);

  Allocator& allocator_;
  std::deque<Room> rooms_;
  uint64_t turns_ = 0;
};

}  // namespace geopipe
