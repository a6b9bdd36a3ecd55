// The case file: explicit costs of one pipeline iteration, for the simulator and for rehearsals.
#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/pipeline_costs.h"
#include "runtime/base/config/schema.h"

namespace geopipe {

// Costs that pass ValidateCosts. Every duration, serialization and latency is rounded half-up to whole nanoseconds
// here, once. Every listed link is a crossing. Errors: "file:line:column: key.path: what; remedy", or why the file
// cannot be read.
absl::StatusOr<PipelineCosts> ReadCaseFile(const std::filesystem::path& path);
absl::StatusOr<PipelineCosts> ParseCaseFile(std::string_view text, std::string_view file);

// An error about stages and devices ("5 stages on 4 devices") with the place where the file says them.
absl::Status AttributeToCaseFile(const std::filesystem::path& path, const PipelineShape& shape,
                                 const absl::Status& status);

// The reference of every key.
FileReference ExplainCase();

}  // namespace geopipe
