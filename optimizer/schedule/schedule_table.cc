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
  const int32_t per_device = shape.chunks / shape.devices;
  const PipelineShape wanted = PipelineShape::Of(row.layout, shape.devices, shape.micro_batches, per_device);
  if (shape.chunks != wanted.chunks) {
    return absl::InvalidArgumentError(fmt::format("schedule {} runs {} per device: {} chunks on {} devices given",
                                                  row.name,
                                                  row.layout == StageLayout::kLinear   ? "one chunk"
                                                  : row.layout == StageLayout::kFolded ? "two chunks"
                                                                                       : "as many chunks",
                                                  shape.chunks, shape.devices));
  }
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    if (shape.placement[chunk] != wanted.placement[chunk]) {
      return absl::InvalidArgumentError(fmt::format("schedule {} runs chunk {} on device {}: placement[{}] is {}",
                                                    row.name, chunk, wanted.placement[chunk], chunk,
                                                    shape.placement[chunk]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDeltaN(const ScheduleRow& row, const PipelineShape& shape,
                         std::span<const int32_t> boundary_delta_n) {
  if (std::ssize(boundary_delta_n) != shape.chunks - 1) {
    return absl::InvalidArgumentError(
        fmt::format("schedule {} needs one delta_n per boundary: {} given for {} boundaries", row.name,
                    boundary_delta_n.size(), shape.chunks - 1));
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
  const auto* const row = std::ranges::find(kSchedules, kind, &ScheduleRow::kind);
  GP_CHECK(row != kSchedules.end(), "schedule kind {} has no row", static_cast<int>(kind));
  return *row;
}

std::vector<int64_t> InFlightOf(ScheduleKind kind, const PipelineShape& shape,
                                std::span<const int32_t> boundary_delta_n) {
  const ScheduleRow& row = RowOf(kind);
  std::vector<int64_t> in_flight(static_cast<size_t>(shape.chunks));
  ChunkInFlight at{.devices = shape.devices, .chunks = shape.chunks, .micro_batches = shape.micro_batches};
  for (at.chunk = shape.chunks - 1; at.chunk >= 0; --at.chunk) {
    at.advance += at.chunk + 1 < shape.chunks ? boundary_delta_n[at.chunk] : 0;
    in_flight[at.chunk] = row.in_flight(at);
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
    return absl::InvalidArgumentError(fmt::format("schedule {} is searched for, not made by rule", row.name));
  }
  GP_RETURN_IF_ERROR(CheckLayout(row, shape));
  if (row.uses_delta_n) {
    GP_RETURN_IF_ERROR(CheckDeltaN(row, shape, boundary_delta_n));
  }
  return row.make(shape, boundary_delta_n, costs);
}

}  // namespace geopipe
