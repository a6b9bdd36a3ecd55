// Finds the shortest plan of a small planning problem by trying all, as a check of the planner's searches. It shares
// the cost model, the placement within a site, the simulator, the schedules' rules and the search of one schedule
// (`auto`) with the planner, but nothing that decides which choices are examined.
#pragma once

#include <cstdint>

#include "optimizer/plan/planner.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe::test {

struct ExhaustiveOptions {
  // Choices are passed over when a bound shows that they cannot beat the best by this margin.
  int64_t margin_ppm = 1'000;
  int64_t beat_ns = 0;  // known from elsewhere: only what is shorter is looked for; 0: nothing is known
  // Every split of the layers (up to 2,000 of a pipeline, else those within one layer of the balanced one) and every
  // ΔN; else the balanced split and the ΔN that hides the crossings, halved, whole and doubled.
  bool splits_and_advances = true;
  int64_t auto_actions = 300'000;   // timed at most in the search of one schedule
  int64_t proof_actions = 100'000;  // timed at most to prove that no schedule is short enough
  int64_t max_searched = 3'000;     // schedules searched for; then the rest is left out
};

struct ExhaustiveResult {
  bool found = false;  // a plan, shorter than beat_ns by more than the margin
  Plan plan;
  int64_t iteration_ns = 0;
  // Sites in order, degrees, ranks of each site, b, s, recompute mode, ZeRO stage, stage layout: without those of a
  // number of ranks that the work of the layers alone rules out.
  int64_t grids = 0;
  int64_t in_bounds = 0;  // of those, what no bound rules out
  int64_t tried = 0;      // layers and, by rule, ΔN: simulated
  int64_t searched = 0;   // schedules searched for
  bool all_splits = true;
  bool complete = true;  // max_searched was enough
};

// Searches every order of every subset of sites, or groups of their nodes, whose neighbours have links and of which
// those of a site stand together, every tensor degree that a node holds, every data degree, every number of pipeline
// ranks on each site, every recompute mode, ZeRO stage, b and s that the job allows, with one stage on every rank and,
// where the kind of schedule has them, several. Only bounds leave anything out: of a device's whole work at the best
// split of the layers, then LowerBoundNs of the costs, for a kind by rule ScheduleBoundNs, for a searched schedule
// MemoryLowerBoundNs. REQUIRES: at most 4 sites; the job and the cluster are valid.
ExhaustiveResult FindExhaustively(const PlanRequest& request, const ExhaustiveOptions& options);

}  // namespace geopipe::test
