// The planner: from a job and a cluster to a plan that says beforehand what it will do, and why. Pure and
// deterministic: the same request gives the same plan on every machine, unless the caller stops the search early.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// InvalidArgument: the request contradicts itself (names key and remedy), or asks to search exhaustively what is too
// large for that. FailedPrecondition: infeasible; the message names the tightest constraint (site, stage, bytes needed
// against capacity) and what would relax it; whether memory rules the job out does not take a search, and so does not
// ask should_stop. DeadlineExceeded: should_stop ended the search before it found anything that fits.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

}  // namespace geopipe
