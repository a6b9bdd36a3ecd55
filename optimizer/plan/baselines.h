// What the plan is compared with.
#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/plan/plan_space.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

// The schedules on the plan's own placement: gpipe, 1f1b with blocking and with non-blocking sends, and geopipe, each
// at the plan's b and s ("same") and at its own best b and s ("best": the best that fits, else the best that does not).
// geopipe takes the plan's ΔN where the plan is geopipe, else its own best ΔN.
std::vector<Baseline> ScheduleBaselines(const PlanSpace& space, const Candidate& plan, uint64_t seed);

// The fastest of all single sites under the plan's recompute mode (any, when the job says auto), with its own best b, s
// and schedule; `fits` is false when no single site fits: then it is the fastest of those that do not. Sites
// that cannot hold even one stage, or lack costs, are passed over; empty when all are.
std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request);

}  // namespace geopipe
