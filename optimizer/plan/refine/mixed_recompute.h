// Recomputation that differs from pipeline rank to pipeline rank: ranks with many micro-batches in flight, or with
// little memory, make activations again where the others keep them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// Finds a plan at the shape, b, s and ZeRO stage of `result` whose ranks differ in their mode, shorter by a tenth of a
// percent at least: first with the cheapest mode on every rank that its memory allows under the result's schedule, then
// with one mode for the first ranks and a cheaper one for the others, then by changing the mode of runs of ranks of a
// site for as long as that helps. Finds none if the job names the mode, there is one rank, or the request does not want
// a refinement, searches exhaustively, fixes ΔN or has other than non-blocking messages. Deterministic unless
// request.should_stop ends it. Errors as CostsOfPlan's. REQUIRES: no given costs.
absl::StatusOr<Refinement> MixRecompute(const PlanRequest& request, const CostSource& source, const PlanResult& result);

// The first two of these steps at each of `shapes` (the most promising first) whose bound leaves room for a plan
// shorter than `iteration_ns`, from its best plan by rule: shows which of them gains enough from a mix to be the
// fastest. Otherwise as MixRecompute.
absl::StatusOr<Refinement> MixRecomputeAt(const PlanRequest& request, const CostSource& source,
                                          std::span<const Shape> shapes, int64_t iteration_ns);

}  // namespace geopipe
