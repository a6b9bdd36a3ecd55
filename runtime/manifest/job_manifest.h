// Jobs as text: the file that people write, and the manifest that travels between processes and lies in the store. Both
// are YAML of one schema (job_schema.h); a manifest is complete, so that reading it needs no other file.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

struct FileReference;  // runtime/base/config/schema.h

// A job that passes ValidateJob. Relative paths are taken from the file's own folder; `model.init_from` is read for its
// config.json. Data files are not opened: planning needs none. `backend`: the job is to be run on it, and keys that do
// nothing in a run, or that the backend cannot do, are refused too. Errors are one sentence, "file:line:column:
// key.path: what; remedy", or the reason why the file cannot be read.
absl::StatusOr<JobSpec> ReadJobFile(const std::filesystem::path& path,
                                    std::optional<BackendKind> backend = std::nullopt);

// The same from text: errors call it `file`, relative paths are taken from `folder`.
absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view file, const std::filesystem::path& folder,
                                     std::optional<BackendKind> backend = std::nullopt);

// The jobs of a file of one document or more, which lines of "---" part, in its order. Errors as above;
// InvalidArgument, too, where two have one name.
absl::StatusOr<std::vector<JobSpec>> ReadJobsFile(const std::filesystem::path& path,
                                                  std::optional<BackendKind> backend = std::nullopt);

// `status` with its place in the job file, where it begins with a key that the file gives ("placement.sites names
// ...").
absl::Status AttributeToJobFile(const std::filesystem::path& path, const absl::Status& status);

// The job as its manifest, which ParseManifest reads back as an equal one.
std::string WriteManifest(const JobSpec& job);

// A job that passes ValidateJob and gives no key that does nothing in a run. Errors as ReadJobFile's, in "manifest".
absl::StatusOr<JobSpec> ParseManifest(std::string_view text);

// Refuses keys whose effect depends on others that this job does not use: sequence_parallel without tensor-parallel
// ranks, a zero_stage without data-parallel ones.
absl::Status CheckRun(const JobSpec& job);

// The reference of every key, from the table that reads them.
FileReference ExplainJob();

}  // namespace geopipe
