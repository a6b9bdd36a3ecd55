#include "coordinator/cli/schedule_file.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/csv.h"
#include "runtime/base/files.h"
#include "runtime/base/output.h"

namespace geopipe {
namespace {

constexpr size_t kMaxScheduleBytes = size_t{1} << 30;

}  // namespace

absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path, const std::optional<PipelineShape>& shape) {
  GP_ASSIGN_OR_RETURN(const std::string csv, ReadFile(path, kMaxScheduleBytes));
  absl::StatusOr<GivenSchedule> given = ReadScheduleCsv(csv, shape);
  if (!given.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, std::string(given.status().message())));
  }
  if (const std::string notes = NotesText(given->notes); !notes.empty()) {
    PrintErr("note: {}: {}\n", path, notes);
  }
  return std::move(given->schedule);
}

}  // namespace geopipe
