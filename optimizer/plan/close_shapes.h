// Which of the degrees and orders that a search has passed over is the fastest with a schedule made to measure: shapes
// are compared by schedules that follow a rule, and another may gain more by one that does not.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <span>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

struct FasterShape {
  std::optional<Shape> shape;                   // nullopt: none of them is
  Refinement refinement;                        // where one is: its plan
  RefineEffort effort = RefineEffort::kSurvey;  // with which it was found
  int64_t evaluations = 0;
};

// `shapes`: the most promising first; `iteration_ns`: to be beaten. Nothing is tried where RefineSchedule tries
// nothing. Errors as RefineSchedule's.
absl::StatusOr<FasterShape> FindFasterShape(const PlanRequest& request, const CostSource& source,
                                            std::span<const Shape> shapes, int64_t iteration_ns);

}  // namespace geopipe
