#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/generators.h"
#include "optimizer/schedule/linear_shape.h"

namespace geopipe {

absl::StatusOr<Schedule> MakeOneFOneB(const PipelineShape& shape) {
  GP_RETURN_IF_ERROR(ValidateLinearShape("1f1b", shape));
  const std::vector<int32_t> no_crossing(static_cast<size_t>(shape.chunks) - 1, 0);
  return MakeGeoPipe(shape, no_crossing);
}

}  // namespace geopipe
