#include "optimizer/schedule/linear_shape.h"

#include <fmt/format.h>

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

}  // namespace geopipe
