// The schedule `auto`: the best that a bounded search finds. A list scheduler (list_scheduler.h) builds schedules
// within memory for a few targets around the lower bound and is tuned (list_tuning.h), a search of partial schedules
// (state_search.h) looks for shorter ones, a local search (local_search.h) improves the best of them, and the result is
// never worse than any of the schedules that the search is given to start with. In between, the search tries to prove
// that nothing is shorter (relaxed_bound.h).
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

struct AutoOptions {
  uint64_t seed = 1;
  // Schedules built, timed or simulated; partial schedules and bounds count by their cost. The same seed and budget
  // give the same schedule on every machine.
  int64_t evaluations = 4'000;
  // Gap to the lower bound, in millionths of it, that is good enough.
  int64_t stop_gap_ppm = 0;
  // Greatest iteration time of interest: list schedules are given up as soon as they must exceed it.
  int64_t limit_ns = std::numeric_limits<int64_t>::max();
  // Asked now and then whether to end the search with the best so far; empty: never.
  std::function<bool()> stop = {};
};

struct AutoSchedule {
  Schedule schedule;         // compute-only; Validate accepts it
  int64_t iteration_ns = 0;  // as Simulate says, epilogue included
  // Lower bound of every schedule within memory: MemoryLowerBoundNs, or more if the search proved more.
  int64_t lower_bound_ns = 0;
  int64_t evaluations = 0;       // spent
  bool stopped = false;          // by options.stop
  std::optional<size_t> start;   // index of the start that no other schedule beats; nullopt: the search's own does
  int64_t best_start_ns = 0;     // of the starts that fit; 0: no start fits
  int64_t list_schedule_ns = 0;  // of the best that the list scheduler built, not tuned; 0: it built none
};

// The best schedule for `costs`: of those in `starts` that fit into memory and of the search's own. Each start costs
// one evaluation, and all are simulated whatever the budget is. The search itself is for non-blocking messages; with
// other modes its schedules are simulated like the starts, but not improved further. REQUIRES: the starts are for
// costs.shape. InvalidArgument: the costs are not valid, or a start is not (as Validate says). FailedPrecondition: no
// schedule was found that fits into memory; names the device with the least room.
absl::StatusOr<AutoSchedule> MakeAutoSchedule(const PipelineCosts& costs, std::span<const Schedule> starts,
                                              const AutoOptions& options = {});

// Does the same, starting with every schedule that a rule makes for this pipeline (named_starts.h).
absl::StatusOr<AutoSchedule> FindSchedule(const PipelineCosts& costs, const AutoOptions& options = {});

// AutoOptions::evaluations that time about `actions` actions altogether, but at least a few.
int64_t EvaluationsWithin(const PipelineCosts& costs, int64_t actions);

}  // namespace geopipe
