// The last step of a search for `schedule: auto`: compares the result of the genetic search with schedules that are
// searched for (optimizer/scheduler), at every b, s, mode (choices.h) and number of stages on a pipeline rank (one; two
// there and back; two to kMaxTriedStagesPerRank round about) whose lower bound leaves room for a better one.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"

namespace geopipe {

// ΔN of each crossing, ascending, as `schedule` (compute-only) uses it: by how much more the stage before it runs ahead
// of 1F1B than the stages behind it already make it. Its message buffers need no more. 0 if devices run several stages.
std::vector<int32_t> EquivalentDeltaN(const Schedule& schedule, const PipelineCosts& costs);

struct RefinedPlan {
  Plan plan;
  PlanPrediction prediction;  // fits
};

struct Refinement {
  // RefineSchedule: shorter by a tenth of a percent at least.
  std::optional<RefinedPlan> better;
  // RefineSchedule: the least of all points' bounds. The greatest number: there is no point.
  int64_t bound_ns = std::numeric_limits<int64_t>::max();
  int64_t evaluations = 0;                    // schedules built, timed or simulated
  bool stopped_early = false;                 // by should_stop
  bool cut_short = false;                     // SearchGrids: by a limit of its work
  std::vector<RejectedAlternative> rejected;  // PlanByRule: every other b, s and mode
};

// Replaces plan, prediction, costs and schedule of `result`, and the account of the search, by those found. REQUIRES:
// found.better.
void TakePlan(Refinement found, PlanResult& result);

// Refines. `plan`: the best so far, `iteration_ns` its iteration. Tries nothing when the request does not want it, asks
// for another schedule than auto or other than non-blocking messages, or fixes ΔN. Deterministic for the job's seed
// unless request.should_stop ends it. Errors as CostsOfPlan's. kSurvey gives every b, s, mode and number of stages on a
// rank a few schedules; kFull searches the best of them further. If the job asks for several stages on a rank, `plan`
// and `iteration_ns` have none, and no better one may mean that none fits.
enum class RefineEffort : uint8_t { kSurvey, kFull };
absl::StatusOr<Refinement> RefineSchedule(const PlanRequest& request, const CostSource& source, const Plan& plan,
                                          int64_t iteration_ns, RefineEffort effort = RefineEffort::kFull);

// True when only RefineSchedule finds the job's plan: `schedule: auto` with several stages on a rank.
bool NeedsMoreStages(const JobSpec& job);

// The best schedule found at `point` (of kind auto) with about `actions` timed actions, if it is shorter than
// `iteration_ns`. Errors as CostsOfPlan's.
absl::StatusOr<Refinement> SearchScheduleAt(const PlanRequest& request, const CostSource& source,
                                            const SchedulePoint& point, int64_t iteration_ns, int64_t actions);

// A schedule for the very stages, b, s and modes of `plan` that is shorter than `iteration_ns`, however little. Besides
// the plan's own costs it searches those of a ladder of slower crossings, and times what it finds there over the real
// ones: what hides a slow crossing is as good over a faster one, but a search seldom comes to it from there. The rungs
// are fractions and multiples of what a micro-batch takes on a stage, not of the crossing's own latency, so that plans
// for better links begin with all schedules that plans for worse ones begin with. Nothing is tried where RefineSchedule
// tries nothing. Deterministic unless request.should_stop ends it. Errors as CostsOfPlan's.
absl::StatusOr<Refinement> PolishSchedule(const PlanRequest& request, const CostSource& source, const Plan& plan,
                                          int64_t iteration_ns);

}  // namespace geopipe
