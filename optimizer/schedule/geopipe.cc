#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/generators.h"
#include "optimizer/schedule/linear_shape.h"

namespace geopipe {
namespace {

// One forward, one backward after `warm_up` forwards; the remaining backwards at the end.
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

absl::StatusOr<Schedule> MakeGeoPipe(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n) {
  GP_RETURN_IF_ERROR(ValidateLinearShape("geopipe", shape));
  if (std::ssize(boundary_delta_n) != shape.chunks - 1) {
    return absl::InvalidArgumentError(
        fmt::format("schedule geopipe needs one delta_n per boundary: {} given for {} boundaries",
                    boundary_delta_n.size(), shape.chunks - 1));
  }
  for (size_t boundary = 0; boundary < boundary_delta_n.size(); ++boundary) {
    if (boundary_delta_n[boundary] < 0) {
      return absl::InvalidArgumentError(
          fmt::format("delta_n of boundary {} is {}: it must not be negative", boundary, boundary_delta_n[boundary]));
    }
  }
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  int64_t advance = 0;
  for (int32_t stage = shape.devices - 1; stage >= 0; --stage) {
    if (stage < shape.devices - 1) {
      advance += boundary_delta_n[stage];
    }
    const int64_t warm_up = std::min<int64_t>(shape.micro_batches, shape.devices - 1 - stage + advance);
    schedule.devices[stage] = AlternateAfterWarmUp(stage, static_cast<int32_t>(warm_up), shape.micro_batches);
  }
  return schedule;
}

absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n) {
  switch (kind) {
    case ScheduleKind::kGpipe:
      return MakeGpipe(shape);
    case ScheduleKind::kOneFOneB:
      return MakeOneFOneB(shape);
    case ScheduleKind::kGeoPipe:
      return MakeGeoPipe(shape, boundary_delta_n);
  }
  GP_CHECK(false, "schedule kind {}", static_cast<int>(kind));
}

}  // namespace geopipe
