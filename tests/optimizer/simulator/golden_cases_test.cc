// Every row of tests/golden/cases/expected.json, to the last digit given there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/case_fixture.h"

namespace geopipe {
namespace {

TEST_CASE("every row of the golden cases is reproduced") {
  const std::vector<GoldenCase> cases = LoadGoldenCases();
  REQUIRE(cases.size() == 8);
  for (const GoldenCase& golden : cases) {
    for (const ExpectedRow& row : golden.rows) {
      PipelineCosts costs = golden.costs;
      costs.comm = row.comm;
      REQUIRE(ValidateCosts(costs).ok());
      const Schedule schedule = MakeSchedule(row.schedule, costs.shape, SpreadDeltaN(costs, row.delta_n)).value();
      REQUIRE(Validate(schedule).ok());
      const SimulationResult result = Simulate(schedule, costs).value();
      CAPTURE(golden.name, ScheduleKindName(row.schedule), CommModeName(row.comm), row.delta_n);
      CHECK(static_cast<double>(result.iteration_ns) * 1e-9 == Approx(row.iteration_s).epsilon(1e-9).margin(0));
      CHECK(result.bubble_ratio == Approx(row.bubble_ratio).epsilon(1e-9).margin(0));
      CHECK(result.fits == row.fits);
      CHECK(result.peak_bytes == row.peak_bytes.value_or(std::vector<int64_t>()));
      CHECK(Simulate(Lower(schedule).value(), costs).value().iteration_ns == result.iteration_ns);
    }
  }
}

TEST_CASE("the lower bound of a golden case lies between the listed one and the best row") {
  for (const GoldenCase& golden : LoadGoldenCases()) {
    double best_s = std::numeric_limits<double>::infinity();
    for (const ExpectedRow& row : golden.rows) {
      best_s = std::min(best_s, row.iteration_s);
    }
    CAPTURE(golden.name);
    const double bound_s = static_cast<double>(LowerBoundNs(golden.costs)) * 1e-9;
    CHECK(bound_s >= golden.lower_bound_s * (1 - 1e-12));
    CHECK(bound_s <= best_s * (1 + 1e-12));
  }
}

}  // namespace
}  // namespace geopipe
