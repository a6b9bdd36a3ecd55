// The reasons for a plan, and for there being none.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/search/genome.h"

namespace geopipe {

// "slower by 1.20 %"; `least` goes before the figure ("at least "), or is empty.
std::string Slower(int64_t iteration_ns, int64_t best_ns, std::string_view least);

// The nearest alternatives to `best` with the reason each was not taken: ΔN one higher and one lower at each crossing,
// layers split evenly, every other b, s, recompute mode, ZeRO stage and schedule kind (with the best known other
// genes). `outcome` is the search's.
std::vector<RejectedAlternative> NearestRejected(const PlanSpace& space, const Evaluated& best,
                                                 const SearchOutcome& outcome);

// The reason against an order of sites and degrees. `best_ns` is the search's result for the chosen one.
RejectedAlternative RejectedShape(const Shape& chosen, const OtherShape& other, int64_t best_ns);

// FailedPrecondition for a job that does not even fit as `frugal`, the order of sites and degrees that exceed their
// memory by least: at the most frugal choice that the job allows, the pipeline rank that exceeds its capacity by most
// with its needs (and the degrees that were auto), then every single change that was checked to make the job fit:
// larger devices, a longer pipeline, more tensor parallelism, recomputation, ZeRO, sequence parallelism, smaller b or
// s, bf16, smaller fixed ΔN. If memory does not rule that choice out, it says that the search found no plan that fits
// within its evaluations. REQUIRES: PlaceStages succeeds for JobOf(request.job, frugal).
absl::Status Infeasible(const PlanRequest& request, const Shape& frugal);

// The same in one line, without remedies: "rank 0 at oslo needs 95.2 GiB of 70.2 GiB, 25.0 GiB too much".
std::string LackingMemory(const PlanRequest& request, const Shape& frugal);

}  // namespace geopipe
