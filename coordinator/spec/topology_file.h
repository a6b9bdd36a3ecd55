// The topology file: the cluster for planning with no server.
#pragma once

#include <absl/status/statusor.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/cluster.h"

namespace geopipe {

// A cluster that passes ValidateCluster. Errors: "file:line:column: key.path: what; remedy", or why the file cannot be
// read.
absl::StatusOr<ClusterSpec> ReadTopologyFile(const std::filesystem::path& path);
absl::StatusOr<ClusterSpec> ParseTopologyFile(std::string_view text, std::string_view file);

// The reference of every key.
std::string ExplainTopology();

}  // namespace geopipe
