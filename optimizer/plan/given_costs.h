// The planner under costs that are given (a case file's) instead of modelled: as many stages as the costs have devices,
// one device each, divided over the job's sites exactly where a boundary crosses.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// Stages of each site in placement order: consecutive stages up to the next crossing boundary.
std::vector<int32_t> StagesPerSite(const PipelineCosts& costs);

// Checks the costs. InvalidArgument: costs that do not validate, stages that are not one per device in order, crossings
// that do not match placement.sites, a fixed ΔN of another number of crossings. With `computes` also contradictions
// with the job's model and tokens: more devices than layers, other micro-batches, other messages.
absl::Status CheckGivenCosts(const JobSpec& job, const PipelineCosts& costs, const std::vector<int32_t>& fixed_delta_n,
                             bool computes);

// Plans as MakePlan with request.costs, for the schedule search.schedule (auto: searched for). ΔN is the fixed one,
// else the best equal ΔN at all crossings from 0 to search.max_delta_n that fits. REQUIRES: CheckGivenCosts is OK.
// FailedPrecondition: a site has too few devices, or no schedule fits the given memory. DeadlineExceeded: as MakePlan.
absl::StatusOr<PlanResult> PlanWithGivenCosts(const PlanRequest& request);

}  // namespace geopipe
