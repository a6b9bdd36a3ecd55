// Exact search of small problems: every grid (sites in order, pipeline ranks on each and how each recomputes, degrees,
// b, s, ZeRO stage, stages on a rank) and every split of the layers is bounded, and those that the bound does not rule
// out are planned. The search over shapes and genomes comes first: it finds the plan to beat, and it is the only one
// for large problems.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// Finds a plan shorter than `iteration_ns` by a tenth of a percent at least, by half a percent if it is searched for
// and has several stages on every pipeline rank; INT64_MAX: any that fits. Finds none if the problem is not small (a
// few thousand grids and up to 64 stages of few micro-batches), the request searches exhaustively, fixes ΔN or does not
// want a refinement, or messages are not non-blocking. Deterministic unless request.should_stop ends it. Errors as
// CostsOfPlan's. REQUIRES: the request has no given costs.
absl::StatusOr<Refinement> SearchGrids(const PlanRequest& request, const CostSource& source, int64_t iteration_ns);

// Sites, degrees and the number of ranks of `plan`, and how many of them each site has.
Shape ShapeOfPlan(const Plan& plan);

}  // namespace geopipe
