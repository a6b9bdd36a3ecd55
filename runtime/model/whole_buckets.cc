#include "runtime/model/whole_buckets.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::Status WholeBuckets::Reserve(size_t rooms, int64_t elements) {
  rooms_.resize(std::max(rooms_.size(), rooms));
  for (Room& room : rooms_) {
    GP_CHECK(!room.leave, "a room that is in use grows");
    if (room.memory.elements() < elements) {
      room.memory = Tensor();
      GP_ASSIGN_OR_RETURN(room.memory,
                          Tensor::Create(allocator_, MemoryCategory::kWorkspace, DType::kFp32, {elements}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<WholeBuckets::Room*> WholeBuckets::Take() {
  Room& room = *std::ranges::min_element(rooms_, {}, &Room::turn);
  GP_RETURN_IF_ERROR(Leave(room));
  Touch(room);
  return &room;
}

absl::Status WholeBuckets::Clear() {
  std::vector<Room*> rooms;
  std::ranges::transform(rooms_, std::back_inserter(rooms), [](Room& room) { return &room; });
  std::ranges::sort(rooms, {}, &Room::turn);
  for (Room* const room : rooms) {
    GP_RETURN_IF_ERROR(Leave(*room));
  }
  return absl::OkStatus();
}

void WholeBuckets::Abandon() {
  for (Room& room : rooms_) {
    (void)Leave(room);
  }
}

absl::Status WholeBuckets::Leave(Room& room) {
  const std::function<absl::Status()> leave = std::exchange(room.leave, nullptr);
  return leave ? leave() : absl::OkStatus();
}

}  // namespace geopipe
