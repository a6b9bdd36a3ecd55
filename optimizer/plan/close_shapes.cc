#include "optimizer/plan/close_shapes.h"

#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/site_ranks.h"

namespace geopipe {
namespace {

// Shapes with schedules that no bound rules out.
constexpr size_t kMaxSurveyed = 8;

}  // namespace

absl::StatusOr<FasterShape> FindFasterShape(const PlanRequest& request, const CostSource& source,
                                            std::span<const Shape> shapes, int64_t iteration_ns) {
  FasterShape found;
  size_t surveyed = 0;
  for (const Shape& shape : shapes) {
    if (surveyed == kMaxSurveyed) {
      break;
    }
    if (request.should_stop && request.should_stop()) {
      break;
    }
    PlanRequest shaped = request;
    shaped.job = JobOf(request.job, shape);
    GP_ASSIGN_OR_RETURN(Plan placement, PlaceBySpeed(shaped.job, request.cluster, source, shape.sites));
    GP_ASSIGN_OR_RETURN(const PlanSpace space, PlanSpace::Create(shaped.job, request.cluster, source, request.comm,
                                                                 request.fixed_delta_n, std::move(placement)));
    const std::optional<PlanSpace::Guess> guess = space.Quick();
    if (!guess.has_value()) {
      continue;
    }
    GP_ASSIGN_OR_RETURN(Refinement refinement, RefineSchedule(shaped, source, space.model().PlanOf(guess->candidate),
                                                              iteration_ns, RefineEffort::kSurvey));
    surveyed += refinement.evaluations > 0 ? 1 : 0;
    found.evaluations += std::exchange(refinement.evaluations, 0);
    if (refinement.better.has_value()) {
      iteration_ns = refinement.better->prediction.prediction.iteration_ns;
      found.shape = shape;
      found.refinement = std::move(refinement);
    }
  }
  return found;
}

}  // namespace geopipe
