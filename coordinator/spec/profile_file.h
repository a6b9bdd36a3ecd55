// The profile file (profile.yaml): measured costs, as profiling wrote them and `plan --profile` reads them.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "optimizer/model/profile.h"
#include "runtime/base/config/schema.h"

namespace geopipe {

// Errors: "file:line:column: key.path: what; remedy", or why the file cannot be read. Entries of sites that `cluster`
// (when given) lacks are refused.
absl::StatusOr<Profile> ReadProfileFile(const std::filesystem::path& path, const ClusterSpec* cluster = nullptr);
absl::StatusOr<Profile> ParseProfileFile(std::string_view text, std::string_view file,
                                         const ClusterSpec* cluster = nullptr);

// Text that ParseProfileFile reads back to the same profile.
std::string FormatProfile(const Profile& profile);
absl::Status WriteProfileFile(const std::filesystem::path& path, const Profile& profile);

// The reference of every key.
FileReference ExplainProfile();

}  // namespace geopipe
