// The search of partial schedules against every schedule.
#include "optimizer/scheduler/state_search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "optimizer/schedule/validate.h"
#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/reduced_pipeline.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/all_schedules.h"
#include "tests/support/auto_cases.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kLongNs = 1'000'000'000'000;

std::vector<int32_t> AllStages(const PipelineCosts& costs) {
  std::vector<int32_t> stages(static_cast<size_t>(costs.shape.stages));
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

// Schedule of a pipeline of all stages, in order.
Schedule ScheduleOf(const PipelineCosts& costs, const StateSearchResult& found) {
  const Instance instance = MakeInstance(costs);
  Sequences sequences(found.turns.size());
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    for (const Phase phase : found.turns[stage]) {
      sequences[costs.shape.placement[stage]].push_back(WorkOf(stage, phase));
    }
  }
  return ToSchedule(instance, costs.shape, sequences);
}

void CheckAgainstAll(PipelineCosts costs, std::mt19937_64& random) {
  costs.epilogue_ns = 0;
  const std::vector<TriedSchedule> tried = TryAllSchedules(costs);
  for (int draw = 0; draw < 6; ++draw) {
    costs.memory->capacity_bytes = tried[Draw(random, 0, std::ssize(tried) - 1)].peak_bytes;
    const int64_t best_ns = ShortestWithin(tried, costs.memory->capacity_bytes);
    CAPTURE(costs.forward_ns, costs.input_grad_ns, costs.weight_grad_ns, costs.memory->capacity_bytes);
    const ReducedPipeline pipeline = Reducer(costs).Reduce(AllStages(costs));
    CHECK(RootBoundNs(pipeline) <= best_ns);
    CHECK(WindowBoundNs(pipeline) <= best_ns);
    StateSearch search(pipeline);
    const StateSearchResult found = search.Run({.shorter_than_ns = kLongNs, .states = 1'000'000});
    REQUIRE(found.turns.size() == static_cast<size_t>(costs.shape.stages));
    CHECK(found.end_ns == best_ns);
    CHECK(found.bound_ns == best_ns);
    const Schedule schedule = ScheduleOf(costs, found);
    REQUIRE(Validate(schedule).ok());
    const SimulationResult simulated = Simulate(schedule, costs).value();
    CHECK(simulated.fits);
    CHECK(simulated.iteration_ns == best_ns);
    const StateSearchResult none = search.Run({.shorter_than_ns = best_ns, .states = 1'000'000});
    CHECK(none.turns.empty());
    CHECK(none.bound_ns == best_ns);
    const StateSearchResult few = search.Run({.shorter_than_ns = kLongNs, .states = 30});
    CHECK(few.bound_ns <= best_ns);
    CHECK(few.states <= 32);
    CHECK((few.turns.empty() || few.end_ns >= best_ns));
  }
}

}  // namespace

TEST_CASE("the search of partial schedules finds what trying every schedule finds", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    CheckAgainstAll(RandomTinyCosts(random, 2, 3, true), random);
    CheckAgainstAll(RandomTinyCosts(random, 2, 5, false), random);
    CheckAgainstAll(RandomTinyCosts(random, 3, 4, false), random);
  }
  CheckAgainstAll(RandomTinyCosts(random, 3, 3, true), random);
}

TEST_CASE("with shared links what the search finds runs, within memory, and about as long as it says", "[scheduler]") {
  int found_any = 0;
  for (const uint64_t seed : {8, 37, 142, 261, 283, 284}) {
    CAPTURE(seed);
    const PipelineCosts costs = MakeSitedCase(seed).costs;
    ReducedPipeline pipeline = Reducer(costs).Reduce(AllStages(costs));
    ShareLinks(MakeInstance(costs), pipeline);
    const StateSearchResult found =
        StateSearch(pipeline).Run({.shorter_than_ns = kLongNs, .states = 40 * int64_t{costs.shape.stages} * 3 * 100});
    if (found.turns.empty()) {
      continue;
    }
    ++found_any;
    const Schedule schedule = ScheduleOf(costs, found);
    REQUIRE(Validate(schedule).ok());
    const SimulationResult simulated = Simulate(schedule, costs).value();
    CHECK(simulated.fits);
    CHECK(std::abs(simulated.iteration_ns - found.end_ns) <= found.end_ns / 1000);
  }
  CHECK(found_any >= 4);
}

TEST_CASE("a search of partial schedules is repeatable", "[scheduler]") {
  const PipelineCosts costs = MakeSitedCase(193).costs;
  const ReducedPipeline pipeline = Reducer(costs).Reduce(AllStages(costs));
  const StateSearchOptions options{.shorter_than_ns = kLongNs, .states = 20'000};
  StateSearch search(pipeline);
  const StateSearchResult once = search.Run(options);
  const StateSearchResult again = search.Run(options);
  CHECK(once.turns == again.turns);
  CHECK(once.bound_ns == again.bound_ns);
  CHECK(once.states == again.states);
}

}  // namespace geopipe
