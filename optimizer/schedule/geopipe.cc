#include <absl/status/statusor.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

// Alternates one forward and one backward after `warm_up` forwards; the remaining backwards come at the end.
std::vector<Action> AlternateAfterWarmUp(int32_t stage, int32_t warm_up, int32_t micro_batches) {
  std::vector<Action> actions;
  actions.reserve(2 * static_cast<size_t>(micro_batches));
  for (int32_t micro_batch = 0; micro_batch < warm_up; ++micro_batch) {
    actions.push_back({stage, ActionKind::kForward, micro_batch});
  }
  for (int32_t micro_batch = warm_up; micro_batch < micro_batches; ++micro_batch) {
    actions.push_back({stage, ActionKind::kForward, micro_batch});
    actions.push_back({stage, ActionKind::kBackward, micro_batch - warm_up});
  }
  for (int32_t micro_batch = micro_batches - warm_up; micro_batch < micro_batches; ++micro_batch) {
    actions.push_back({stage, ActionKind::kBackward, micro_batch});
  }
  return actions;
}

}  // namespace

absl::StatusOr<Schedule> MakeGeoPipe(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n,
                                     const ScheduleCosts& /*costs*/) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  int64_t advance = 0;
  for (int32_t stage = shape.devices - 1; stage >= 0; --stage) {
    advance += stage + 1 < shape.devices ? boundary_delta_n[stage] : 0;
    const int64_t warm_up = std::min<int64_t>(shape.micro_batches, shape.devices - 1 - stage + advance);
    schedule.devices[stage] = AlternateAfterWarmUp(stage, static_cast<int32_t>(warm_up), shape.micro_batches);
  }
  return schedule;
}

}  // namespace geopipe
