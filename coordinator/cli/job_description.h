// Everything about one job, for people and for programs: what `geopipectl describe` shows.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/trace_data.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

struct DescriptionOptions {
  bool shows_run = false;  // which run of its name the job is, also if that is the first
  int32_t columns = kAnyColumns;
};

// `compared`: its latest iterations beside its plan, where there are any. Errors are those of the parts' conversion.
absl::StatusOr<std::string> DescriptionText(const v1::JobDetail& detail, const std::optional<ComparedRun>& compared,
                                            const DescriptionOptions& options = {});
// {"job","run","state","cause",…,"transitions":[…],"epochs":[…],"checkpoints":[…],"manifest","comparison"}.
absl::StatusOr<Json> DescriptionToJson(const v1::JobDetail& detail, const std::optional<ComparedRun>& compared);

}  // namespace geopipe
