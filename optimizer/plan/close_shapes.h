// Finds the fastest, with a schedule made to measure, of the degrees and orders that a search has passed over: it
// compares shapes by schedules that follow a rule, and another shape may gain more from a schedule that does not.
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
  std::optional<Shape> shape;                   // nullopt: no shape is faster
  Refinement refinement;                        // where one is: its plan
  RefineEffort effort = RefineEffort::kSurvey;  // with which it was found
  int64_t evaluations = 0;
};

// `shapes`: the most promising first; `iteration_ns`: time to beat. Tries none where RefineSchedule tries none. Errors
// as RefineSchedule's.
absl::StatusOr<FasterShape> FindFasterShape(const PlanRequest& request, const CostSource& source,
                                            std::span<const Shape> shapes, int64_t iteration_ns);

}  // namespace geopipe
