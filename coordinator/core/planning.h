// Turns a job that has its devices into the plan that the roll-out deploys. Pure; runs on the planner thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <string>

#include "coordinator/cluster/allocation.h"
#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"
#include "optimizer/plan/planner.h"

namespace geopipe {

struct PlanningInput {
  JobSpec job;
  RunOptions run;
  ClusterSpec cluster;
  std::optional<Profile> profile = std::nullopt;  // absent: the analytic model
  // Positions of each group's nodes among those of its site, for sites in groups: the plan names sites and their nodes.
  GroupedNodes groups = {};
};

// Replaces groups and their nodes by sites and theirs.
void NameSites(const GroupedNodes& groups, Plan& plan);

// Checks that this version can run the job with these options at all, before anything is started. InvalidArgument names
// the key and the remedy.
absl::Status CheckRunnable(const JobSpec& job, const RunOptions& run);

// The planner with the run options applied; schedule auto under explicit costs is geopipe unless the run names it.
// FailedPrecondition: infeasible; InvalidArgument: the input contradicts itself.
absl::StatusOr<PlanResult> PlanJob(const PlanningInput& input, std::function<bool()> should_stop,
                                   ParallelFor parallel_for = {});

// "genetic, 412 evaluations of 1,024, seed 1, stopped: time".
std::string SearchSummary(const PlanResult& result, const RunOptions& run);

}  // namespace geopipe
