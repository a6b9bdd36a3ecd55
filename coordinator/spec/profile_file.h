// The profile file (profile.yaml): measured costs, as profiling wrote them and `plan --profile` reads them.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/profile.h"

namespace geopipe {

// Errors: "file:line:column: key.path: what; remedy", or why the file cannot be read.
absl::StatusOr<Profile> ReadProfileFile(const std::filesystem::path& path);
absl::StatusOr<Profile> ParseProfileFile(std::string_view text, std::string_view file);

// What ParseProfileFile reads back to the same profile.
std::string FormatProfile(const Profile& profile);
absl::Status WriteProfileFile(const std::filesystem::path& path, const Profile& profile);

// The reference of every key.
std::string ExplainProfile();

}  // namespace geopipe
