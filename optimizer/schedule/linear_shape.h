// What the generators of this folder have in common: they place chunk c on device c.
#pragma once

#include <absl/status/status.h>

#include <string_view>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// InvalidArgument if the shape is invalid or not one chunk per device in device order; names the generator.
absl::Status ValidateLinearShape(std::string_view generator, const PipelineShape& shape);

}  // namespace geopipe
