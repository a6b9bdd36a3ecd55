// Schedules that people give in a file (--schedule-csv), and what such a file says that is not taken as it stands.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// The schedule in the file (optimizer/schedule/csv.h), compute-only and valid; for `shape` where it is given. Notes go
// to standard error. Errors name the file, row and cell.
absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path,
                                          const std::optional<PipelineShape>& shape = std::nullopt);

}  // namespace geopipe
