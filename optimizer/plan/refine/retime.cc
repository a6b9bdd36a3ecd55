#include "optimizer/plan/refine/retime.h"

#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/refine/grid_search.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/schedule/lowering.h"

namespace geopipe {

absl::StatusOr<RefinedPlan> Retime(const PlanRequest& request, const CostSource& source, Plan plan,
                                   const Schedule& schedule) {
  for (PipelineRankPlan& rank : plan.pipeline_ranks) {
    const SiteSpec* site = request.cluster.FindSite(rank.site);
    GP_CHECK(site != nullptr, "site {}", rank.site);
    rank.capacity_bytes = site->device.usable_bytes();
  }
  const JobSpec job = JobOf(request.job, ShapeOfPlan(plan));
  GP_ASSIGN_OR_RETURN(PipelineCosts costs, CostsOfPlan(job, request.cluster, source, plan));
  GP_ASSIGN_OR_RETURN(PlanPrediction prediction,
                      PredictSchedule(job, plan, std::move(costs), DropCommunication(schedule)));
  return RefinedPlan{std::move(plan), std::move(prediction)};
}

}  // namespace geopipe
