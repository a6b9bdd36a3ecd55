#include "optimizer/schedule/schedule_table.h"

#include <absl/status/status.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

absl::Status CheckLayout(const ScheduleRow& row, const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  const int32_t per_device = shape.stages / shape.devices;
  const PipelineShape wanted = PipelineShape::Of(row.layout, shape.devices, shape.micro_batches, per_device);
  if (shape.stages != wanted.stages) {
    return absl::InvalidArgumentError(fmt::format("schedule {} runs {} per device: {} stages on {} devices given",
                                                  row.name,
                                                  row.layout == StageLayout::kLinear   ? "one stage"
                                                  : row.layout == StageLayout::kFolded ? "two stages"
                                                                                       : "as many stages",
                                                  shape.stages, shape.devices));
  }
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    if (shape.placement[stage] != wanted.placement[stage]) {
      return absl::InvalidArgumentError(fmt::format("schedule {} runs stage {} on device {}: placement[{}] is {}",
                                                    row.name, stage, wanted.placement[stage], stage,
                                                    shape.placement[stage]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDeltaN(const ScheduleRow& row, const PipelineShape& shape,
                         std::span<const int32_t> boundary_delta_n) {
  if (std::ssize(boundary_delta_n) != shape.stages - 1) {
    return absl::InvalidArgumentError(
        fmt::format("schedule {} needs one delta_n per boundary: {} given for {} boundaries", row.name,
                    boundary_delta_n.size(), shape.stages - 1));
  }
  for (size_t boundary = 0; boundary < boundary_delta_n.size(); ++boundary) {
    if (boundary_delta_n[boundary] < 0) {
      return absl::InvalidArgumentError(
          fmt::format("delta_n of boundary {} is {}: it must not be negative", boundary, boundary_delta_n[boundary]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const ScheduleRow& RowOf(ScheduleKind kind) {
  if (kind == kGivenSchedule.kind) {
    return kGivenSchedule;
  }
  const auto* const row = std::ranges::find(kSchedules, kind, &ScheduleRow::kind);
  GP_CHECK(row != kSchedules.end(), "schedule kind {} has no row", static_cast<int>(kind));
  return *row;
}

std::vector<int64_t> InFlightOf(ScheduleKind kind, const PipelineShape& shape,
                                std::span<const int32_t> boundary_delta_n) {
  const ScheduleRow& row = RowOf(kind);
  std::vector<int64_t> in_flight(static_cast<size_t>(shape.stages));
  StageInFlight at{.devices = shape.devices, .stages = shape.stages, .micro_batches = shape.micro_batches};
  for (at.stage = shape.stages - 1; at.stage >= 0; --at.stage) {
    at.advance += at.stage + 1 < shape.stages ? boundary_delta_n[at.stage] : 0;
    in_flight[at.stage] = row.in_flight(at);
  }
  return in_flight;
}

std::string ScheduleNames(bool ScheduleRow::*flag) {
  std::vector<std::string_view> names;
  for (const ScheduleRow& row : kSchedules) {
    if (flag == nullptr || row.*flag) {
      names.push_back(row.name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name) {
  const auto* const row = std::ranges::find(kSchedules, name, &ScheduleRow::name);
  if (row == kSchedules.end()) {
    return absl::InvalidArgumentError(fmt::format("unknown schedule '{}': use one of {}", name, ScheduleNames()));
  }
  return row->kind;
}

absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n, const ScheduleCosts& costs) {
  const ScheduleRow& row = RowOf(kind);
  if (row.make == nullptr) {
    return absl::InvalidArgumentError(fmt::format("schedule {} is {}, not made by rule", row.name,
                                                  kind == ScheduleKind::kCsv ? "given" : "searched for"));
  }
  GP_RETURN_IF_ERROR(CheckLayout(row, shape));
  if (row.uses_delta_n) {
    GP_RETURN_IF_ERROR(CheckDeltaN(row, shape, boundary_delta_n));
  }
  return row.make(shape, boundary_delta_n, costs);
}

}  // namespace geopipe
