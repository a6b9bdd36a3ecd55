// The files that one command reads and writes. What it writes takes the place of what is there, so none of it may be
// what it reads, by whatever name, nor the same file twice.
#pragma once

#include <absl/status/status.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// A file and what names it: "--export-csv", "-f", "model.init_from". An empty path: not given.
struct NamedFile {
  std::string name;
  std::filesystem::path path;
};

// Path of standard input or output. A command writes at most one thing to standard output.
inline constexpr std::string_view kStandardStream = "-";

// Checks that no output is an input or another output, also through links; InvalidArgument names both. Touches no file.
// Devices and pipes may be named several times.
absl::Status CheckOutputs(std::span<const NamedFile> inputs, std::span<const NamedFile> outputs);

// InvalidArgument: an output is a folder, or its folder is not there or takes no files. Asked before the work begins,
// which would be lost for want of a place. Nothing is touched.
absl::Status CheckPlaces(std::span<const NamedFile> outputs);

// Files named by the job that a run or a plan reads: its data, and config.json and weights of model.init_from.
std::vector<NamedFile> FilesOfJob(const JobSpec& job);

// Writes to the file, or for "-" to standard output.
absl::Status WriteOutputFile(const std::string& path, std::string_view content);

}  // namespace geopipe
