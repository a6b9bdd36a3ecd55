// The planner's answer.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

enum class BaselineScope : uint8_t {
  kSame,        // the plan's own b, s and layers
  kBest,        // the schedule's own best b, s and layers
  kSingleSite,  // the best single site that fits, with its own best schedule and degrees
  // A pipeline within each site on an equal share of the tokens, gradients reduced over the sites: equivalent training.
  kSiteReplicas,
};

// "same", "best", "single-site", "site-replicas".
std::string_view BaselineScopeName(BaselineScope scope);
absl::StatusOr<BaselineScope> ParseBaselineScope(std::string_view name);

struct Baseline {
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
  CommMode comm = CommMode::kNonBlocking;
  BaselineScope scope = BaselineScope::kSame;
  std::string site;  // kSingleSite; of kSiteReplicas all: "north,east", "16 sites"
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
  int64_t space_size = 0;  // over all orders of sites and degrees that were tried
  uint64_t seed = 0;
  int64_t unproven = 0;        // exhaustive: orders and degrees with too many candidates, left out
  bool stopped_early = false;  // by should_stop
  bool cut_short = false;      // by a limit of the work on all grids (grid_search.h): fewer sites may be faster
  // The best so far after each batch of evaluations, and after the refinement if it found a better one.
  std::vector<int64_t> best_so_far_ns;
  std::vector<RejectedAlternative> rejected;
};

// Tells how long a plan takes, and what its fullest device holds.
struct TimeAndMemory {
  int64_t iteration_ns = 0;
  int64_t fullest_device_bytes = 0;

  friend bool operator==(const TimeAndMemory&, const TimeAndMemory&) = default;
};

struct PlanResult {
  Plan plan;
  Prediction prediction;
  PipelineCosts costs;  // of the simulation that made the prediction
  Schedule schedule;    // lowered
  std::vector<Baseline> baselines;
  SearchReport search;
  int64_t cluster_bound_ns =
      0;  // of every plan for the job, whatever it leaves open (cluster_bound.h); 0: not asked for
  // The other of the fastest plan and the one that takes least memory; nullopt: they are one, or it was not asked for.
  std::optional<TimeAndMemory> traded;
  std::vector<SiteCostReport> cost_reports;  // of the plan's sites in its order; empty without measured durations
  std::vector<std::string> warnings;         // one sentence each: the setting, its cost, the remedy
};

// The job with the degrees that its plan was made for in place of auto.
JobSpec JobOfPlan(const JobSpec& job, const PlanResult& result);

}  // namespace geopipe
