// The job file: YAML in the manner of Kubernetes (apiVersion, kind, metadata, spec) to a JobSpec.
#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// A job that passes ValidateJob. Relative paths are taken from the file's own folder; `model.init_from` is read for its
// config.json. Data files are not opened: planning needs none. Errors are one sentence,
// "file:line:column: key.path: what; remedy", or the reason why the file cannot be read.
absl::StatusOr<JobSpec> ReadJobFile(const std::filesystem::path& path);

// The same from text: errors call it `file`, relative paths are taken from `folder`.
absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view file, const std::filesystem::path& folder);

// The reference of every key, from the table that reads them.
std::string ExplainJob();

}  // namespace geopipe
