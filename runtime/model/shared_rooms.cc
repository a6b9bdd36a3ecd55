#include "runtime/model/shared_rooms.h"

#include <algorithm>

#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::Status StateRoom::Reserve(int64_t vectors, int64_t elements) {
  const int64_t needed = vectors * std::min(elements, max_elements_);
  if (memory_.elements() < needed) {
    memory_ = Tensor();
    GP_ASSIGN_OR_RETURN(memory_, Tensor::Create(allocator_, MemoryCategory::kWorkspace, DType::kFp32, {needed}));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
