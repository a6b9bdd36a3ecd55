// The search over shapes (order of sites, degrees) and, within each, over its genomes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/plan_space.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/shapes.h"
#include "optimizer/search/genome.h"

namespace geopipe {

struct ShapeFound {
  std::unique_ptr<PlanSpace> space;  // of the best genome; null when nothing fits
  SearchOutcome outcome;             // of that space; evaluated.front() is the best of all
  int64_t evaluations = 0;           // over all shapes
  int64_t space_size = 0;
  std::vector<int64_t> best_so_far_ns;
  bool stopped_early = false;
  Shape most_frugal;  // when nothing fits: that which needs least memory on a device
};

// Few sites: every shape in the order of its lower bound, as long as that leaves it in the race. Many sites: the shapes
// of some orders (as the cluster lists them, walks to the nearest neighbour, each site alone) are compared by
// PlanSpace::Quick; the best orders are improved by local search at the choices that went best with them, and the best
// shapes that come of it are searched. With a listed order and fixed degrees there is one shape.
// Errors as those of PlaceStages and PlanSpace::Create for the first shape, when no shape can be made.
absl::StatusOr<ShapeFound> SearchShapes(const PlanRequest& request, const CostSource& source);

}  // namespace geopipe
