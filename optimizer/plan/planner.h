// The planner: turns a job and a cluster into a plan, with a prediction of its figures and their reasons. Pure and
// deterministic: the same request gives the same plan on every machine, unless the caller stops the search early.
#pragma once

#include <absl/status/statusor.h>

#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// InvalidArgument: the request contradicts itself (names key and remedy), or asks for an exhaustive search of a space
// that is too large. FailedPrecondition: infeasible; the message names the tightest constraint (site, stage, bytes
// needed against capacity) and remedies; whether memory rules the job out takes no search, and so does not ask
// should_stop. DeadlineExceeded: should_stop ended the search before it found a plan that fits.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

}  // namespace geopipe
