// Bounds by search against every schedule of small pipelines, and against random ones of any order.
#include "optimizer/scheduler/relaxed_bound.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/scheduler/link_lines.h"
#include "optimizer/scheduler/reduced_pipeline.h"
#include "optimizer/scheduler/state_search.h"
#include "optimizer/simulator/prepared_simulator.h"
#include "optimizer/simulator/shortest_path.h"
#include "tests/support/all_schedules.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kLongNs = 1'000'000'000;

// Every selection of stages of a pipeline of up to 5.
std::vector<std::vector<int32_t>> Selections(int32_t stages) {
  std::vector<std::vector<int32_t>> selections;
  for (int32_t chosen = 1; chosen < 1 << stages; ++chosen) {
    std::vector<int32_t>& selection = selections.emplace_back();
    for (int32_t stage = 0; stage < stages; ++stage) {
      if ((chosen >> stage) % 2 == 1) {
        selection.push_back(stage);
      }
    }
  }
  return selections;
}

// No bound is above an iteration of these costs.
void CheckBounds(const PipelineCosts& costs, int64_t iteration_ns) {
  const int64_t end_ns = iteration_ns - costs.epilogue_ns;
  const Reducer reducer(costs);
  for (const std::vector<int32_t>& selection : Selections(costs.shape.stages)) {
    CAPTURE(selection);
    const ReducedPipeline pipeline = reducer.Reduce(selection);
    REQUIRE(RootBoundNs(pipeline) <= end_ns);
    REQUIRE(WindowBoundNs(pipeline) <= end_ns);
    StateSearch search(pipeline);
    for (const int64_t states : {20, 2'000}) {
      REQUIRE(search.Run({.shorter_than_ns = kLongNs, .states = states, .shares = 4}).bound_ns <= end_ns);
    }
  }
  REQUIRE(FindRelaxedBound(costs, {.known_ns = kLongNs, .actions = 1'000'000}).bound_ns <= end_ns);
}

// Lets some boundaries share a link.
void ShareSome(std::mt19937_64& random, PipelineCosts& costs) {
  BoundaryCost link = costs.boundaries.front();
  link.crosses = true;
  link.link = "a";
  link.latency_ns = Draw(random, 0, 9);
  link.serialization_ns = Draw(random, 1, 9);
  for (BoundaryCost& boundary : costs.boundaries) {
    if (Draw(random, 0, 3) > 0) {
      boundary = link;
    }
  }
}

}  // namespace

TEST_CASE("no schedule of a small pipeline beats a bound by search, whatever it leaves out", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 45; ++round) {
    const bool split = round % 3 == 0;
    PipelineCosts costs = RandomTinyCosts(random, split ? 2 : 3, split ? 3 : 4, split);
    if (round % 2 == 1) {
      ShareSome(random, costs);
    }
    const std::vector<TriedSchedule> tried = TryAllSchedules(costs);
    for (int draw = 0; draw < 4; ++draw) {
      costs.memory->capacity_bytes = tried[Draw(random, 0, std::ssize(tried) - 1)].peak_bytes;
      CAPTURE(round, draw, costs.memory->capacity_bytes);
      CheckBounds(costs, ShortestWithin(tried, costs.memory->capacity_bytes));
    }
  }
}

TEST_CASE("no random schedule beats a bound by search in the memory that it takes", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 150; ++round) {
    PipelineShape shape =
        PipelineShape::Linear(static_cast<int32_t>(Draw(random, 2, 5)), static_cast<int32_t>(Draw(random, 1, 6)));
    std::shuffle(shape.placement.begin(), shape.placement.end(), random);
    PipelineCosts costs = RandomCosts(random, shape);
    if (round % 2 == 0) {
      ShareSome(random, costs);
    }
    costs.memory =
        MemoryCosts{std::vector<int64_t>(shape.devices, 1'000'000), std::vector<int64_t>(shape.devices, 2), {}, {}};
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      costs.memory->activation_bytes.push_back(Draw(random, 0, 6));
      costs.memory->wgrad_bytes.push_back(Draw(random, 0, 6));
    }
    REQUIRE(StatesCanBeSearched(costs));
    const Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
    PreparedSimulator simulator(costs);
    const auto outcome = simulator.Run(schedule).value();
    costs.memory->capacity_bytes.assign(outcome.peak_bytes.begin(), outcome.peak_bytes.end());
    CAPTURE(round, CommModeName(costs.comm), ToCsv(schedule));
    CheckBounds(costs, outcome.iteration_ns);
  }
}

TEST_CASE("two stages' round trips cannot both be filled, which a search of both proves", "[scheduler]") {
  // Stage 0 holds three micro-batches, stage 1 two, stage 2 one; a round trip of stage 0 alone would allow more.
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(3, 24);
  costs.forward_ns = {10, 10, 10};
  costs.input_grad_ns = {20, 20, 20};
  costs.boundaries = {BoundaryCost{true, {}, 0, 7, 0}, BoundaryCost{true, {}, 0, 7, 0}};
  costs.memory = MemoryCosts{{3, 2, 1}, {0, 0, 0}, {1, 1, 1}, {0, 0, 0}};
  const Reducer reducer(costs);
  const auto bound_ns = [&](const std::vector<int32_t>& stages) {
    const ReducedPipeline pipeline = reducer.Reduce(stages);
    return StateSearch(pipeline).Run({.shorter_than_ns = kLongNs, .states = 1'000'000}).bound_ns;
  };
  const int64_t all_ns = bound_ns({0, 1, 2});
  CHECK(bound_ns({0}) < all_ns);
  CHECK(bound_ns({0, 1}) <= all_ns);
  const RelaxedBound relaxed = FindRelaxedBound(costs, {.known_ns = kLongNs, .actions = 100'000'000});
  CHECK(relaxed.bound_ns == all_ns);
  CHECK(relaxed.actions > 0);
  CHECK(FindRelaxedBound(costs, {.known_ns = kLongNs, .actions = 10}).actions == 0);
}

TEST_CASE("boundaries that share a link cost each other its serialization", "[scheduler]") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(3, 10);
  costs.forward_ns = {1, 1, 1};
  costs.input_grad_ns = {2, 2, 2};
  costs.boundaries = {BoundaryCost{true, "a", 0, 5, 10}, BoundaryCost{true, "a", 0, 5, 10}};
  const std::vector<LinkLines> lines = FindLinkLines(costs, ShortestPaths(costs));
  // After the first F, ten messages over each boundary, the latency of the last.
  CHECK(GreatestNs(lines[2].forward_heads, 10) == 1 + 10 * 20 + 5);
  // Ten I of the last stage, after the first: all messages, the latency, the last I of stage 0.
  CHECK(GreatestNs(lines[2].input_tails, 10) == 2 + 10 * 20 + 5 + 2);
  CHECK(GreatestNs(lines[0].forward_heads, 10) == 0);
  costs.boundaries[1].link = "b";
  CHECK(GreatestNs(FindLinkLines(costs, ShortestPaths(costs))[2].forward_heads, 10) == 0);
}

TEST_CASE("only pipelines with one stage per device can be searched", "[scheduler]") {
  std::mt19937_64 random(1);
  PipelineCosts costs = RandomTinyCosts(random, 3, 4, true);
  CHECK(StatesCanBeSearched(costs));
  costs.memory->capacity_bytes[1] = 1;
  CHECK_FALSE(StatesCanBeSearched(costs));
  costs.memory.reset();
  CHECK(StatesCanBeSearched(costs));
  costs.shape.placement = {0, 1, 0};
  costs.shape.devices = 2;
  CHECK_FALSE(StatesCanBeSearched(costs));
}

}  // namespace geopipe
