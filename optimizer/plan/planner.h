// The planner: from a job and a cluster to a plan that says beforehand what it will do, and why. Pure and
// deterministic: the same request gives the same plan on every machine, unless the caller stops the search early.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan_params.h"
#include "optimizer/model/profile.h"
#include "optimizer/plan/parallel_for.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

enum class SearchMethod : uint8_t { kGenetic, kExhaustive };

struct PlanRequest {
  JobSpec job;
  ClusterSpec cluster;
  std::optional<Profile> profile;  // measured costs; the analytic model where absent (see cost_source.h)
  SearchMethod method = SearchMethod::kGenetic;
  CommMode comm = CommMode::kNonBlocking;
  std::vector<int32_t> fixed_delta_n;  // not empty: the search takes this ΔN (one number stands for all crossings)
  bool refine = true;                  // schedule auto: also schedules made to measure (refine_schedule.h)
  std::function<bool()> should_stop;   // asked between batches; empty: never stops
  ParallelFor parallel_for;            // how candidates are evaluated; empty: one after the other. The plan is the same
};

struct Baseline {
  std::string schedule;
  std::string comm;
  std::string scope;  // "same": the plan's own b, s and layers; "best": the schedule's own best b, s and layers;
                      // "single-site": the best single site that fits, with its own best schedule and degrees
  std::string site;   // single-site only
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  int64_t iteration_ns = 0;
  double bubble_ratio = 0;
  bool fits = true;
};

// A nearest alternative that was not taken.
struct RejectedAlternative {
  std::string change;  // "delta_n 3,2", "micro_batch_size 2"
  std::string reason;  // "slower by 1.2 %", "stage 0 needs 71.2 GiB of 64.0 GiB"
};

struct SearchReport {
  SearchMethod method = SearchMethod::kGenetic;
  int64_t evaluations = 0;
  int64_t space_size = 0;  // over all orders of sites and degrees that were looked at
  uint64_t seed = 0;
  int64_t unproven = 0;        // exhaustive: orders and degrees with too many candidates, left out
  bool stopped_early = false;  // by should_stop
  // After each batch of evaluations, and after the refinement if it found a better one.
  std::vector<int64_t> best_so_far_ns;
  std::vector<RejectedAlternative> rejected;
};

struct PlanResult {
  Plan plan;
  int64_t tensor = 1;  // degrees that the plan was made for, the job's or chosen
  int64_t data = 1;
  Prediction prediction;
  PipelineCosts costs;  // what the prediction was simulated with
  Schedule schedule;    // lowered
  std::vector<Baseline> baselines;
  SearchReport search;
  std::vector<SiteCostReport> cost_reports;  // of the plan's sites in its order; empty without measured durations
};

// The job with the degrees that its plan was made for in place of auto.
JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result);

// InvalidArgument: the request contradicts itself (names key and remedy), or asks to search exhaustively what is too
// large for that. FailedPrecondition: infeasible; the message names the tightest constraint (site, stage, bytes needed
// against capacity) and what would relax it; whether memory rules the job out does not take a search, and so does not
// ask should_stop. DeadlineExceeded: should_stop ended the search before it found anything that fits.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

}  // namespace geopipe
