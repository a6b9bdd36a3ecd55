// Known plans under other costs.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// `plan` with its `schedule` (lowered or compute-only) as it would run for the request's job on its cluster, whatever
// it was made for. Capacities are the cluster's; whether it fits stands in the prediction. Errors as CostsOfPlan's.
// REQUIRES: the plan's devices are the cluster's.
absl::StatusOr<RefinedPlan> Retime(const PlanRequest& request, const CostSource& source, Plan plan,
                                   const Schedule& schedule);

}  // namespace geopipe
