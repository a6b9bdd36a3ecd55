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

// "-": standard input or output, beside which nothing else may be written there.
inline constexpr std::string_view kStandardStream = "-";

// InvalidArgument names both: an output is an input or another output, through links too. Nothing is touched. Devices
// and pipes may be named as often as one likes.
absl::Status CheckOutputs(std::span<const NamedFile> inputs, std::span<const NamedFile> outputs);

// Files named by the job that a run or a plan reads: its data, and config.json and weights of model.init_from.
std::vector<NamedFile> FilesOfJob(const JobSpec& job);

// Writes to the file, or for "-" to standard output.
absl::Status WriteOutputFile(const std::string& path, std::string_view content);

}  // namespace geopipe
