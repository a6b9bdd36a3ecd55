// Puts the place in the file in front of an error about a value as a whole.
#pragma once

#include <absl/status/status.h>

#include <string_view>

#include "runtime/base/config/yaml_reader.h"

namespace geopipe {

// `status` begins with a key ("training.iterations is 0; ..."). The result names the line of `prefix` + that key, or of
// the nearest key above it that the file gives: "job.yaml:9:17: spec.training.iterations: is 0; ...".
absl::Status AttributeToKey(const YamlDocument& document, std::string_view prefix, const absl::Status& status);

// The whole of `status` as an error about `path`.
absl::Status AttributeTo(const YamlDocument& document, std::string_view path, const absl::Status& status);

}  // namespace geopipe
