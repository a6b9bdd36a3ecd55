// One simulator for many schedules gives the same results as a new one for each, whatever it ran before.
#include "optimizer/simulator/prepared_simulator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/schedule/csv.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

void CheckSame(const absl::StatusOr<PreparedSimulator::Outcome>& outcome,
               const absl::StatusOr<SimulationResult>& expected) {
  REQUIRE(outcome.status() == expected.status());
  if (!expected.ok()) {
    return;
  }
  CHECK(outcome->iteration_ns == expected->iteration_ns);
  CHECK(outcome->bubble_ratio == expected->bubble_ratio);
  CHECK(outcome->fits == expected->fits);
  CHECK(std::vector(outcome->busy_ns.begin(), outcome->busy_ns.end()) == expected->busy_ns);
  CHECK(std::vector(outcome->peak_bytes.begin(), outcome->peak_bytes.end()) == expected->peak_bytes);
}

TEST_CASE("runs do not leave a trace: after valid, stuck and misplaced schedules alike") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int64_t finished = 0;
  int64_t failed = 0;
  for (int round = 0; round < 300; ++round) {
    const PipelineShape shape = RandomShape(random);
    const PipelineCosts costs = RandomCosts(random, shape);
    PreparedSimulator simulator(costs);
    for (int run = 0; run < 12; ++run) {
      Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
      auto& actions = schedule.devices[Draw(random, 0, shape.devices - 1)];
      if (actions.size() > 1 && Draw(random, 0, 1) == 0) {
        std::swap(actions.front(), actions[Draw(random, 0, std::ssize(actions) - 1)]);
      } else if (!actions.empty() && Draw(random, 0, 9) == 0) {
        actions[Draw(random, 0, std::ssize(actions) - 1)].stage += 1;
      }
      CAPTURE(round, run, CommModeName(costs.comm), ToCsv(schedule));
      const absl::StatusOr<SimulationResult> expected = Simulate(schedule, costs);
      CheckSame(simulator.Run(schedule), expected);
      const absl::StatusOr<SimulationResult> recorded = simulator.Simulate(schedule, {.record_timeline = true});
      REQUIRE(recorded.status() == expected.status());
      if (expected.ok()) {
        const SimulationResult fresh = Simulate(schedule, costs, {.record_timeline = true}).value();
        CHECK(recorded->timeline == fresh.timeline);
        CHECK(recorded->messages == fresh.messages);
      }
      ++(expected.ok() ? finished : failed);
    }
  }
  CHECK(finished > 500);
  CHECK(failed > 500);
}

TEST_CASE("iterations of a century each do not add up to an overflow") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 1);
  costs.forward_ns = {1'000'000'000'000'000'000, 1};
  costs.input_grad_ns = {1, 1'000'000'000'000'000'000};
  costs.boundaries.resize(1);
  PreparedSimulator simulator(costs);
  const Schedule schedule = ParseCsv("0F0,0B0\n1F0,1B0\n", costs.shape).value();
  const Schedule stuck = ParseCsv("0B0,0F0\n1F0,1B0\n", costs.shape).value();
  for (int run = 0; run < 10; ++run) {
    CHECK(simulator.Run(schedule).value().iteration_ns == 2'000'000'000'000'000'002);
    CHECK(simulator.Run(stuck).status().code() == absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace geopipe
