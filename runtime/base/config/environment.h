// Environment variables of a program's configuration.
#pragma once

#include <absl/status/status.h>

#include <span>
#include <string>
#include <string_view>

namespace geopipe {

// InvalidArgument names the first variable that begins with `prefix` ("GEOPIPE_AGENT_") and is none of the keys'
// (Schema::KeyPaths; GEOPIPE_AGENT_DEVICES_COUNT is devices.count), with the one that is probably meant: misspelt, it
// would be passed over in silence.
absl::Status CheckEnvironmentNames(std::string_view prefix, std::span<const std::string> key_paths);

}  // namespace geopipe
