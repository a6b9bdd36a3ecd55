// The search over shapes (order of sites, degrees) and, within each, over its genomes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "optimizer/model/cost_source.h"
#include "optimizer/plan/space/plan_request.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/search/genome.h"

namespace geopipe {

struct ShapeFound {
  std::unique_ptr<PlanSpace> space;  // of the best genome; null when nothing that fits was found
  Shape shape;                       // its own, pipeline spelled out
  SearchOutcome outcome;             // of that space; evaluated.front() is the best of all
  int64_t evaluations = 0;           // over all shapes
  int64_t space_size = 0;
  std::vector<int64_t> best_so_far_ns;
  int64_t unproven = 0;  // exhaustive: shapes with too many genomes
  bool stopped_early = false;
  std::optional<OtherShape> other;  // the best that was not taken, as far as it was searched
  // Other shapes for which a schedule made to measure may take at most kCloseRatio of the time found, by
  // PlanSpace::SearchedNs: the least first, pipelines spelled out.
  std::vector<Shape> close;
  static constexpr double kCloseRatio = 1.1;
  static constexpr size_t kMaxClose = 32;
  Shape most_frugal;  // that which exceeds its memory by least, if at all
};

// Few sites: every shape in the order of its lower bound, until the bound rules out the rest. Many sites, all alike:
// degrees and numbers of sites by their bound (ChainBounds), the best of them on the shortest walks over that many
// sites; many unlike sites: walks by pace at all degrees (FindPacedWalks). They are compared by PlanSpace::Quick; the
// best orders are improved by local search at their best choices, and the best resulting shapes, at most two orders
// with the same degrees, are searched. With a listed order and fixed degrees there is one shape for each number of
// pipeline ranks. Shapes that memory rules out are left out before any search; when it rules out all, that is known
// without one, and should_stop is not asked. search.max_evaluations is for all shapes together: each may spend half of
// the rest, the last one all of it, and the search ends when all is spent and a plan that fits was found. Until then
// each further shape is given at least 64. Errors as those of PlaceStages and PlanSpace::Create for the first shape,
// when no shape can be made. InvalidArgument, too, for exhaustive search of many sites, and when the shapes that fit
// all have too many genomes for it.
absl::StatusOr<ShapeFound> SearchShapes(const PlanRequest& request, const CostSource& source);

}  // namespace geopipe
