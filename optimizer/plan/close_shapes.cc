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

// Most shapes that are surveyed, of those with schedules that no bound rules out.
constexpr size_t kMaxSurveyed = 8;
// Most of them that are searched further, if their bounds leave it open whether they are faster.
constexpr size_t kMaxSearched = 2;

struct Surveyed {
  Shape shape;
  Plan plan;  // by genome
  int64_t bound_ns = 0;
};

class ShapeRefiner {
 public:
  ShapeRefiner(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), best_ns_(iteration_ns) {}

  absl::Status Survey(std::span<const Shape> shapes) {
    for (const Shape& shape : shapes) {
      if (surveyed_.size() == kMaxSurveyed || Stopped()) {
        break;
      }
      const JobSpec job = JobOf(request_.job, shape);
      GP_ASSIGN_OR_RETURN(Plan placement, PlaceBySpeed(job, request_.cluster, source_, shape.sites));
      GP_ASSIGN_OR_RETURN(const PlanSpace space, PlanSpace::Create(job, request_.cluster, source_, request_.comm,
                                                                   request_.fixed_delta_n, std::move(placement)));
      const std::optional<PlanSpace::Guess> guess = space.Quick();
      if (!guess.has_value()) {
        continue;
      }
      Surveyed surveyed{.shape = shape, .plan = space.model().PlanOf(guess->candidate)};
      GP_ASSIGN_OR_RETURN(const bool tried, Try(surveyed, RefineEffort::kSurvey));
      if (tried) {
        surveyed_.push_back(std::move(surveyed));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SearchFurther() {
    std::ranges::stable_sort(surveyed_, {}, &Surveyed::bound_ns);
    size_t searched = 0;
    for (Surveyed& each : surveyed_) {
      if (searched == kMaxSearched || each.bound_ns >= best_ns_ || Stopped()) {
        break;
      }
      if (each.shape != found_.shape) {
        ++searched;
        GP_RETURN_IF_ERROR(Try(each, RefineEffort::kFull).status());
      }
    }
    return absl::OkStatus();
  }

  FasterShape Take() { return std::move(found_); }

 private:
  // Tries the shape; false: there was nothing to try.
  absl::StatusOr<bool> Try(Surveyed& shape, RefineEffort effort) {
    PlanRequest shaped = request_;
    shaped.job = JobOf(request_.job, shape.shape);
    GP_ASSIGN_OR_RETURN(Refinement refinement, RefineSchedule(shaped, source_, shape.plan, best_ns_, effort));
    const int64_t evaluations = std::exchange(refinement.evaluations, 0);
    shape.bound_ns = refinement.bound_ns;
    found_.evaluations += evaluations;
    if (refinement.better.has_value()) {
      best_ns_ = refinement.better->prediction.prediction.iteration_ns;
      found_.shape = shape.shape;
      found_.effort = effort;
      found_.refinement = std::move(refinement);
    }
    return evaluations > 0;
  }

  bool Stopped() const { return request_.should_stop && request_.should_stop(); }

  const PlanRequest& request_;
  const CostSource& source_;
  int64_t best_ns_;
  std::vector<Surveyed> surveyed_;
  FasterShape found_;
};

}  // namespace

absl::StatusOr<FasterShape> FindFasterShape(const PlanRequest& request, const CostSource& source,
                                            std::span<const Shape> shapes, int64_t iteration_ns) {
  ShapeRefiner refiner(request, source, iteration_ns);
  GP_RETURN_IF_ERROR(refiner.Survey(shapes));
  if (request.refine_fully) {
    GP_RETURN_IF_ERROR(refiner.SearchFurther());
  }
  return refiner.Take();
}

}  // namespace geopipe
