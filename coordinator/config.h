// Checks the coordinator's configuration (runtime/manifest/coordinator_config.h).
#pragma once

#include <absl/status/status.h>

#include "runtime/manifest/coordinator_config.h"

namespace geopipe {

// Rules that span keys, and addresses. InvalidArgument names the key, and its place in `document` (the file that
// `config` was read from; one without a root when there was none).
absl::Status ValidateConfig(const CoordinatorConfig& config, const YamlDocument& document = {});

}  // namespace geopipe
