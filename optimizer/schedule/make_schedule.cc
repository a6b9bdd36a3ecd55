#include <absl/status/statusor.h>

#include "optimizer/base/check.h"
#include "optimizer/schedule/generators.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n, const ScheduleCosts& costs) {
  switch (kind) {
    case ScheduleKind::kGpipe:
      return MakeGpipe(shape);
    case ScheduleKind::kOneFOneB:
      return MakeOneFOneB(shape);
    case ScheduleKind::kGeoPipe:
      return MakeGeoPipe(shape, boundary_delta_n);
    case ScheduleKind::kInterleaved:
      return MakeInterleaved(shape);
    case ScheduleKind::kZbH1:
      return MakeZbH1(shape, costs);
    case ScheduleKind::kZbH2:
      return MakeZbH2(shape, costs);
    case ScheduleKind::kZbV:
      return MakeZbV(shape, costs);
    case ScheduleKind::kGeoPipeZb:
      return MakeGeoPipeZb(shape, boundary_delta_n, costs);
    case ScheduleKind::kAuto:
      return absl::InvalidArgumentError("schedule auto is searched for, not made by rule");
  }
  GP_CHECK(false, "schedule kind {}", static_cast<int>(kind));
}

}  // namespace geopipe
