// A request to the planner.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/profile.h"
#include "optimizer/plan/space/parallel_for.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct PlanRequest {
  JobSpec job;
  ClusterSpec cluster;
  std::optional<Profile> profile;  // measured costs; the analytic model where absent (see cost_source.h)
  // Given costs (a case file's) of a linear pipeline, in place of the model's and the profile's, of which only the
  // costs of messages besides their link then count (given_costs.h).
  std::optional<PipelineCosts> costs;
  SearchMethod method = SearchMethod::kGenetic;
  CommMode comm = CommMode::kNonBlocking;
  // The schedule to run, compute-only and valid, in place of one that is made or searched for (given_schedule.h).
  // REQUIRES: the job leaves search.schedule to auto; fixed_delta_n is empty.
  std::optional<Schedule> schedule;
  std::vector<int32_t> fixed_delta_n;  // not empty: the search takes this ΔN (one number stands for all crossings)
  std::vector<int64_t> site_ranks;     // not empty: pipeline ranks on each of the job's placement.sites (PlaceStages)
  // Not empty: the recompute mode of each pipeline rank of the one shape that the job asks for, in place of the job's
  // mode for all of them. REQUIRES: they differ; the job says one mode.
  std::vector<Recompute> rank_recompute;
  bool refine = true;         // also try what no genome describes (refine_schedule.h, grid_search.h)
  bool refine_fully = true;   // else only a few at every b, s, recompute mode and number of stages
  bool fewer_sites = true;    // also plan at some of the sites where not all of them could be looked at (fewer_sites.h)
  bool baselines = true;      // also plan the baselines (baselines.h)
  bool single_site = true;    // the best single site, too; unneeded with FindAlternatives
  bool weigh_memory = false;  // also say what the plan that takes least memory takes (frugal_plan.h)
  bool cluster_bound = true;  // also say how fast the cluster could be at best (cluster_bound.h)
  // Time that a plan must beat to be of use: work that cannot is skipped, and a plan above it may be slower than need
  // be.
  int64_t beat_ns = std::numeric_limits<int64_t>::max();
  std::function<bool()> should_stop;  // asked by any thread of parallel_for, too; empty: never stops
  ParallelFor parallel_for;           // how candidates are evaluated; empty: one after the other. The plan is the same
  // Reports now and then, on MakePlan's thread, how many candidates have been looked at, which never falls, and what
  // the best takes, which never rises (0: none fits yet). The last report is of the plan, or with search.prefer memory
  // of the fastest that was found. May be empty.
  std::function<void(int64_t evaluations, int64_t best_ns)> progress;
};

}  // namespace geopipe
