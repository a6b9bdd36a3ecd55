// What the generators of this folder have in common: they place chunk c on device c.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/schedule/schedule.h"

namespace geopipe {

// InvalidArgument if the shape is invalid or not one chunk per device in device order; names the generator.
absl::Status ValidateLinearShape(std::string_view generator, const PipelineShape& shape);

// advance(p) of every stage: the sum of ΔN over the boundaries k >= p. InvalidArgument if there is not one
// non-negative ΔN per boundary.
absl::StatusOr<std::vector<int64_t>> Advances(std::string_view generator, const PipelineShape& shape,
                                              std::span<const int32_t> boundary_delta_n);

}  // namespace geopipe
