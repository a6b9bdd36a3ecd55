// The plan of a run whose costs are given (a case file) instead of modelled: as many stages as the costs have devices,
// one device each, divided over the job's sites exactly where a boundary of the costs crosses.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

// Stages of each site in placement order: consecutive stages up to the next crossing boundary.
std::vector<int32_t> StagesPerSite(const PipelineCosts& costs);

// InvalidArgument: chunks that are not one per device in order, crossings that do not match placement.sites, costs that
// do not validate, or micro-batches that the job's tokens do not make (unless the backend is modelled).
absl::Status CheckExplicitCosts(const JobSpec& job, const RunOptions& run);

// The schedule is run.schedule, else the job's, else geopipe. ΔN is run.delta_n, else the best equal ΔN at all
// crossings from 0 to search.max_delta_n that fits. Of `profile` (may be null) only what messages cost counts: the case
// says all else. REQUIRES: CheckExplicitCosts(job, run).ok().
// FailedPrecondition: a site has too few devices, or nothing fits the given memory.
absl::StatusOr<PlanResult> MakeExplicitPlan(const JobSpec& job, const RunOptions& run, const ClusterSpec& cluster,
                                            const Profile* profile);

}  // namespace geopipe
