// `geopipectl playground`: a job trained over several rehearsed sites on this machine, every part real.
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>

namespace geopipe {

// A VerbFunction (coordinator/cli/verb.h).
absl::StatusOr<int> RunPlayground(std::span<const std::string> arguments);

}  // namespace geopipe
