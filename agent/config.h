// Reads the agent's configuration (runtime/manifest/agent_config.h).
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "runtime/manifest/agent_config.h"

namespace geopipe::agent {

// Made of the file (none when `path` is empty), the environment and `settings` ("key=value" with dotted keys). Errors
// are InvalidArgument with the place (file:line:column, the variable or the setting), or those of reading the file.
// What has a default that depends on the machine is filled in: node, worker_binary.
absl::StatusOr<AgentConfig> ReadAgentConfig(const std::string& path, const std::vector<std::string>& settings);

}  // namespace geopipe::agent
