#include "optimizer/plan/close_shapes.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/shape_search.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

TEST_CASE("the fastest of several shapes comes with its plan, and its evaluations count once") {
  PlanRequest request = test::PaperRequest();
  request.refine = true;
  const CostSource source(request.job, request.cluster, nullptr);
  const ShapeFound found = SearchShapes(request, source).value();
  REQUIRE(found.space != nullptr);
  Shape fewer = found.shape;
  fewer.pipeline /= 2;
  const std::vector<Shape> shapes{fewer, found.shape};
  const FasterShape faster = FindFasterShape(request, source, shapes, std::numeric_limits<int64_t>::max() / 8).value();
  REQUIRE(faster.shape.has_value());
  REQUIRE(faster.refinement.better.has_value());
  CHECK(faster.refinement.better->plan.grid.pipeline == faster.shape->pipeline);
  CHECK(faster.refinement.better->prediction.fits);
  CHECK(faster.refinement.evaluations == 0);
  CHECK(faster.evaluations > 0);
  // No shape is faster than the fastest of them.
  const int64_t iteration_ns = faster.refinement.better->prediction.prediction.iteration_ns;
  CHECK_FALSE(FindFasterShape(request, source, shapes, iteration_ns)->shape.has_value());
}

}  // namespace
}  // namespace geopipe
