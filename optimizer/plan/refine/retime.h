// Times known plans under other costs.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Times `plan` with its `schedule` (lowered or compute-only) for the request's job on its cluster, whatever they were
// made for. Capacities are the cluster's; the prediction says whether the plan fits. Errors as CostsOfPlan's. REQUIRES:
// the plan's devices are the cluster's.
absl::StatusOr<RefinedPlan> Retime(const PlanRequest& request, const CostSource& source, Plan plan,
                                   const Schedule& schedule);

}  // namespace geopipe
