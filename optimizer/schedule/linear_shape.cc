#include "optimizer/schedule/linear_shape.h"

#include <fmt/format.h>

#include <cstddef>

#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::Status ValidateLinearShape(std::string_view generator, const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateShape(shape));
  if (shape.chunks != shape.devices) {
    return absl::InvalidArgumentError(
        fmt::format("schedule {} runs one chunk per device: {} chunks on {} devices given", generator, shape.chunks,
                    shape.devices));
  }
  for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    if (shape.placement[chunk] != chunk) {
      return absl::InvalidArgumentError(fmt::format("schedule {} runs chunk c on device c: placement[{}] is {}",
                                                    generator, chunk, shape.placement[chunk]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Advances(std::string_view generator, const PipelineShape& shape,
                                              std::span<const int32_t> boundary_delta_n) {
  if (std::ssize(boundary_delta_n) != shape.chunks - 1) {
    return absl::InvalidArgumentError(
        fmt::format("schedule {} needs one delta_n per boundary: {} given for {} boundaries", generator,
                    boundary_delta_n.size(), shape.chunks - 1));
  }
  for (size_t boundary = 0; boundary < boundary_delta_n.size(); ++boundary) {
    if (boundary_delta_n[boundary] < 0) {
      return absl::InvalidArgumentError(
          fmt::format("delta_n of boundary {} is {}: it must not be negative", boundary, boundary_delta_n[boundary]));
    }
  }
  std::vector<int64_t> advances(static_cast<size_t>(shape.devices), 0);
  for (int32_t stage = shape.devices - 2; stage >= 0; --stage) {
    advances[stage] = advances[stage + 1] + boundary_delta_n[stage];
  }
  return advances;
}

}  // namespace geopipe
