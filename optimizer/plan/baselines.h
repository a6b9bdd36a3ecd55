// What the plan is compared with.
#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/plan_space.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

// The schedules on the plan's own placement: gpipe, 1f1b with blocking and with non-blocking sends, and geopipe, each
// at the plan's recompute mode, b and s ("same") and at its own best ones ("best": the best that fits, else the best
// that does not), with the plan's layers.
// geopipe takes the plan's ΔN where the plan is geopipe, else its own best ΔN.
std::vector<Baseline> ScheduleBaselines(const PlanSpace& space, const Candidate& plan, uint64_t seed);

// The fastest of all single sites with its own best b, s, recompute mode, layers and schedule, and with the request's
// tensor and data degrees; `fits` is false when no single site fits: then it is the fastest of those that do not. Sites
// that cannot hold even one stage, or lack costs, are passed over; empty when all are.
std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request, const CostSource& source);

}  // namespace geopipe
