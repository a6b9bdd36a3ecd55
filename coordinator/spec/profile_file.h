// The profile file (profile.yaml): measured costs, as profiling wrote them and `plan --profile` reads them, and what
// they were measured of.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "runtime/base/config/schema.h"

namespace geopipe {

// Identifies what the entries measure: they say nothing about another model, precision or kind of device.
struct ProfiledModel {
  ModelSpec model;  // its layers need not be the job's: what is measured is one
  Precision precision = Precision::kFp32;
  std::string device{kHostDevice};  // DeviceSpec::kind
  Attention attention = Attention::kBlocked;

  friend bool operator==(const ProfiledModel&, const ProfiledModel&) = default;
};

struct ProfileFile {
  ProfiledModel model = {};  // of a file without entries: not looked at
  Profile profile = {};

  friend bool operator==(const ProfileFile&, const ProfileFile&) = default;
};

// Returns what the workers of this job measure.
ProfiledModel ProfiledModelOf(const JobSpec& job);

// Identifies what a profile is to be used for; one of something else is refused.
struct ProfileUse {
  const JobSpec& job;
  const ClusterSpec& cluster;
};

// Errors: "file:line:column: key.path: what; remedy", or why the file cannot be read. With `use`, a profile of another
// model, precision, kind of device or attention is refused, and so are entries of sites that the cluster lacks.
absl::StatusOr<ProfileFile> ReadProfileFile(const std::filesystem::path& path, const ProfileUse* use = nullptr);
absl::StatusOr<ProfileFile> ParseProfileFile(std::string_view text, std::string_view file,
                                             const ProfileUse* use = nullptr);

// Returns text that ParseProfileFile reads back to the same.
std::string FormatProfile(const ProfileFile& file);
absl::Status WriteProfileFile(const std::filesystem::path& path, const ProfileFile& file);

// The reference of every key.
FileReference ExplainProfile();

}  // namespace geopipe
