#include "optimizer/plan/close_shapes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/site_ranks.h"

namespace geopipe {
namespace {

// Shapes with schedules that no bound rules out.
constexpr size_t kMaxSurveyed = 8;
constexpr size_t kMaxOpen = 3;

struct Surveyed {
  Shape shape;
  int64_t bound_ns = 0;
};

std::vector<Shape> OpenOf(std::vector<Surveyed> surveyed, const FasterShape& found, int64_t iteration_ns) {
  std::ranges::stable_sort(surveyed, {}, &Surveyed::bound_ns);
  std::vector<Shape> open;
  for (Surveyed& each : surveyed) {
    if (each.bound_ns < iteration_ns && open.size() < kMaxOpen && each.shape != found.shape) {
      open.push_back(std::move(each.shape));
    }
  }
  return open;
}

}  // namespace

absl::StatusOr<FasterShape> FindFasterShape(const PlanRequest& request, const CostSource& source,
                                            std::span<const Shape> shapes, int64_t iteration_ns) {
  FasterShape found;
  std::vector<Surveyed> surveyed;
  for (const Shape& shape : shapes) {
    if (surveyed.size() == kMaxSurveyed) {
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
    if (refinement.evaluations > 0) {
      surveyed.push_back({.shape = shape, .bound_ns = refinement.bound_ns});
    }
    found.evaluations += std::exchange(refinement.evaluations, 0);
    if (refinement.better.has_value()) {
      iteration_ns = refinement.better->prediction.prediction.iteration_ns;
      found.shape = shape;
      found.refinement = std::move(refinement);
    }
  }
  found.open = OpenOf(std::move(surveyed), found, iteration_ns);
  return found;
}

}  // namespace geopipe
