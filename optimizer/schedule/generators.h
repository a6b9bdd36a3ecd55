// Schedule generators: compute-only schedules for one chunk per device (chunk c on device c).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// All forwards, then all backwards, both in micro-batch order (GPipe, arXiv 1811.06965).
absl::StatusOr<Schedule> MakeGpipe(const PipelineShape& shape);

// Non-interleaved 1F1B (PipeDream-flush, arXiv 2006.09503): MakeGeoPipe with no crossing.
absl::StatusOr<Schedule> MakeOneFOneB(const PipelineShape& shape);

// GeoPipe (arXiv 2510.12064): stage p warms up with min(m, P-1-p + advance(p)) forwards, then alternates one forward
// and one backward, then drains; advance(p) is the sum of delta_n over crossing boundaries k >= p. `boundary_delta_n`
// has one entry per boundary (chunks - 1): 0 where the boundary does not cross sites.
absl::StatusOr<Schedule> MakeGeoPipe(const PipelineShape& shape, std::span<const int32_t> boundary_delta_n);

// Dispatch over the kinds. `boundary_delta_n` is used by geopipe alone.
absl::StatusOr<Schedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                      std::span<const int32_t> boundary_delta_n);

}  // namespace geopipe
