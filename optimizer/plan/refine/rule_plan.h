// Plans for one kind of schedule that the genetic search does not run itself: those that run several stages on a
// pipeline rank or split the backward.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/refine/schedule_points.h"

namespace geopipe {

// The shortest plan of the job's kind, which has a rule and is not searched, at the sites and degrees of `plan`, which
// the search found with SearchedKind instead. ΔN is `plan`'s own, the request's, or one of several fractions and
// multiples of the ΔN that hides the crossings; a schedule with a split backward that does not fit is made again within
// less memory. `better` is set. Deterministic unless request.should_stop ends it.
// FailedPrecondition: none fits; names pipeline rank, bytes and capacity. InvalidArgument: the rule is not defined for
// any b and s, or errors as SchedulePoints'. DeadlineExceeded: should_stop, before one that fits.
absl::StatusOr<Refinement> PlanByRule(const PlanRequest& request, const CostSource& source, const Plan& plan);

// The same at one point, under its costs, with the best of its delta_n_choices.
absl::StatusOr<Refinement> PlanByRuleAt(const PlanRequest& request, SchedulePoint point);

}  // namespace geopipe
