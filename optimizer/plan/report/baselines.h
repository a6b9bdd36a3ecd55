// Baselines that a plan is compared with.
#pragma once

#include <absl/status/statusor.h>

#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/candidate_model.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// The schedules on the plan's own placement: gpipe, 1f1b with blocking and with non-blocking sends, and geopipe, each
// at the plan's recompute mode, b, s and layers ("same") and at its own best b, s and recompute mode, with the plan's
// layers or those that balance it ("best": the best that fits, else the best that does not). geopipe takes the plan's
// ΔN if the plan is geopipe, else its own best ΔN. `searched` is the search's best, which is the plan unless a searched
// schedule took its place; `searched_delta_n`: over every ΔN, not a fixed one.
std::vector<Baseline> ScheduleBaselines(const CandidateModel& model, const Candidate& plan, const Candidate& searched,
                                        bool searched_delta_n, uint64_t seed);

// The fastest single site with its own best b, s, recompute mode, layers, schedule and, if the request leaves them to
// the planner, degrees; `fits` is false when no single site fits: then it is the fastest of those that do not, with the
// plan's degrees. Sites that cannot hold even one stage, or lack costs, are skipped; empty when all are.
std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request, const CostSource& source, const PlanResult& plan);

}  // namespace geopipe
