// The topology file: the cluster for planning with no server.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "optimizer/model/cluster.h"
#include "runtime/base/config/schema.h"

namespace geopipe {

// Decides whether devices must say how fast they are: they must if no measurement says what a model costs on them.
enum class DeviceFigures : uint8_t { kOptional, kNeeded };

// A cluster that passes ValidateCluster. Errors: "file:line:column: key.path: what; remedy", or why the file cannot be
// read.
absl::StatusOr<ClusterSpec> ReadTopologyFile(const std::filesystem::path& path,
                                             DeviceFigures figures = DeviceFigures::kOptional);
absl::StatusOr<ClusterSpec> ParseTopologyFile(std::string_view text, std::string_view file,
                                              DeviceFigures figures = DeviceFigures::kOptional);

// A device as the file describes one: the name of a known device, or a map of figures. Errors name `source` as the
// file.
absl::StatusOr<DeviceSpec> ParseDevice(std::string_view text, std::string_view source);

// The reference of every key.
FileReference ExplainTopology();

}  // namespace geopipe
