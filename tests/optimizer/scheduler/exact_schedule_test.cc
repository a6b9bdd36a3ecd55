// The exact search against every schedule, the simulator and the bound.
#include "tests/bench/exact_schedule.h"

#include <absl/status/status.h>

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "optimizer/schedule/validate.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/all_schedules.h"
#include "tests/support/auto_cases.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

void CheckShortest(PipelineCosts costs, std::mt19937_64& random) {
  const std::vector<TriedSchedule> tried = TryAllSchedules(costs);
  for (int draw = 0; draw < 8; ++draw) {
    costs.memory->capacity_bytes = tried[Draw(random, 0, std::ssize(tried) - 1)].peak_bytes;
    const int64_t best_ns = ShortestWithin(tried, costs.memory->capacity_bytes);
    CAPTURE(costs.forward_ns, costs.input_grad_ns, costs.weight_grad_ns, costs.memory->capacity_bytes);
    const ExactSchedule exact = FindExactSchedule(costs, {.known_ns = 1'000'000}).value();
    CHECK(exact.proved());
    CHECK(exact.best_ns == best_ns);
    REQUIRE(Validate(exact.schedule).ok());
    const SimulationResult simulated = Simulate(exact.schedule, costs).value();
    CHECK(simulated.fits);
    CHECK(simulated.iteration_ns == best_ns);
    const ExactSchedule none = FindExactSchedule(costs, {.known_ns = best_ns}).value();
    CHECK(none.proved());
    CHECK(none.best_ns == best_ns);
    CHECK(none.schedule.devices.empty());
    const ExactSchedule narrow = FindExactSchedule(costs, {.known_ns = 1'000'000, .kept = 2}).value();
    CHECK(narrow.best_ns >= best_ns);
    CHECK(narrow.bound_ns <= best_ns);
  }
}

}  // namespace

TEST_CASE("the exact search finds what trying every schedule finds", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    CheckShortest(RandomTinyCosts(random, 2, 3, true), random);
    CheckShortest(RandomTinyCosts(random, 2, 5, false), random);
    CheckShortest(RandomTinyCosts(random, 3, 4, false), random);
  }
  CheckShortest(RandomTinyCosts(random, 3, 3, true), random);
  CheckShortest(RandomTinyCosts(random, 2, 4, true), random);
}

TEST_CASE("no exact optimum is below the bound, and auto is next to it", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  int near = 0;
  int cases = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    CAPTURE(i);
    const PipelineCosts costs = MakeSmallSitedCase(seed + i).costs;
    const AutoSchedule found = FindSchedule(costs).value();
    const ExactSchedule exact = FindExactSchedule(costs, {.known_ns = found.iteration_ns + 1}).value();
    REQUIRE(exact.proved());
    CHECK(exact.best_ns >= MemoryLowerBoundNs(costs).value());
    CHECK(exact.best_ns >= found.lower_bound_ns);
    CHECK(exact.best_ns <= found.iteration_ns);
    near += (found.iteration_ns - exact.best_ns) * 200 <= exact.best_ns ? 1 : 0;
    ++cases;
  }
  CHECK(near * 20 >= cases * 19);
}

TEST_CASE("pipelines that the exact search is not for are refused", "[scheduler]") {
  const PipelineCosts costs = MakeSmallSitedCase(1).costs;
  const auto refused = [](const PipelineCosts& changed) {
    return FindExactSchedule(changed, {.known_ns = 1}).status().code() == absl::StatusCode::kInvalidArgument;
  };
  CHECK_FALSE(refused(costs));
  PipelineCosts shared = costs;
  shared.boundaries[0].crosses = true;
  shared.boundaries[0].link = "a";
  CHECK(refused(shared));
  PipelineCosts blocking = costs;
  blocking.comm = CommMode::kBlocking;
  CHECK(refused(blocking));
  PipelineCosts many = costs;
  many.shape.micro_batches = 11;
  CHECK(refused(many));
  PipelineCosts tight = costs;
  tight.memory->capacity_bytes[0] = 1;
  CHECK(refused(tight));
}

}  // namespace geopipe
