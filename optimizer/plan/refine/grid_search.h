// Exact where problems are small: every grid (sites in order, pipeline ranks on each and how each recomputes, degrees,
// b, s, ZeRO stage, stages on a rank) and every split of the layers is looked at by its bound, and what the bound
// leaves in the race is planned. The search over shapes and genomes goes before it: it finds what most grids are
// measured against, and it is all there is for large problems.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {

// A plan shorter than `iteration_ns` by a tenth of a percent at least, by half a percent where it is searched for and
// has several stages on every pipeline rank; INT64_MAX: any that fits. Nothing where the problem is not small (a few
// thousand grids and up to 64 stages of few micro-batches), the request searches exhaustively, fixes ΔN or does not
// want a refinement, or messages are not non-blocking. Deterministic unless request.should_stop ends it. Errors as
// CostsOfPlan's. REQUIRES: the request has no given costs.
absl::StatusOr<Refinement> SearchGrids(const PlanRequest& request, const CostSource& source, int64_t iteration_ns);

// Sites, degrees and the number of ranks of `plan`, and how many of them each site has.
Shape ShapeOfPlan(const Plan& plan);

}  // namespace geopipe
