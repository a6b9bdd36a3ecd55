// The lower bounds against schedules: published columns to the digit, every schedule of small pipelines, and schedules
// improved step by step.
#include "optimizer/simulator/lower_bound.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/prepared_simulator.h"
#include "tests/support/all_schedules.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// CrossPipe, table 5: eight devices, a crossing in the middle, an activation of 2 of which 1 stays from I to W.
PipelineCosts Column(int32_t micro_batches, int64_t capacity, double latency, double serialization) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(8, micro_batches);
  costs.forward_ns.assign(8, 38'000'000);
  costs.input_grad_ns.assign(8, 46'100'000);
  costs.weight_grad_ns.assign(8, 21'000'000);
  costs.boundaries.resize(7);
  costs.boundaries[3].crosses = true;
  costs.boundaries[3].latency_ns = std::llround(latency * 38e6);
  costs.boundaries[3].serialization_ns = std::llround(serialization * 38e6);
  costs.memory = MemoryCosts{std::vector<int64_t>(8, 2 * capacity), std::vector<int64_t>(8, 0),
                             std::vector<int64_t>(8, 2), std::vector<int64_t>(8, 1)};
  return costs;
}

// Seconds per micro-batch, in units of the fifth digit.
int64_t FifthDigit(int64_t bound_ns, int32_t micro_batches) {
  return std::llround(static_cast<double>(bound_ns) * 1e-4 / micro_batches);
}

TEST_CASE("a cap of 8 gives the provable bounds of CrossPipe's five columns, to the digit") {
  struct Expected {
    double latency;
    double serialization;
    int64_t bound;
  };
  for (const auto& [latency, serialization, bound] :
       {Expected{0, 0, 13271}, {.25, .25, 13746}, {.25, 2, 15408}, {2, .25, 15408}, {2, 2, 17071}}) {
    CAPTURE(latency, serialization);
    CHECK(FifthDigit(MemoryLowerBoundNs(Column(16, 8, latency, serialization)).value(), 16) == bound);
  }
}

TEST_CASE("with twice the micro-batches and a cap of 16 the last device, or the crossing's rate, binds") {
  struct Expected {
    double latency;
    double serialization;
    int64_t bound;
  };
  for (const auto& [latency, serialization, bound] :
       {Expected{0, 0, 11341}, {.25, .25, 11401}, {.25, 2, 11684}, {2, .25, 11608}, {2, 2, 11892}}) {
    CAPTURE(latency, serialization);
    const PipelineCosts costs = Column(32, 16, latency, serialization);
    CHECK(FifthDigit(MemoryLowerBoundNs(costs).value(), 32) == bound);
    CHECK(LowerBoundNs(costs) <= MemoryLowerBoundNs(costs).value());
  }
}

TEST_CASE("without memory the two bounds are one, and where one micro-batch does not fit there is none") {
  PipelineCosts costs = Column(16, 8, 1, 1);
  costs.memory->capacity_bytes[5] = 1;
  CHECK_FALSE(MemoryLowerBoundNs(costs).has_value());
  costs.memory.reset();
  CHECK(MemoryLowerBoundNs(costs) == LowerBoundNs(costs));
}

TEST_CASE("the bound within memory grows as capacity falls, down to one micro-batch at a time") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    PipelineCosts costs = RandomCosts(random, RandomShape(random));
    costs.shape.micro_batches = static_cast<int32_t>(Draw(random, 1, 40));
    costs.memory = MemoryCosts{std::vector<int64_t>(costs.shape.devices, 200), {}, {}, {}};
    costs.memory->static_bytes.assign(costs.shape.devices, 3);
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      costs.memory->activation_bytes.push_back(Draw(random, 0, 9));
      costs.memory->wgrad_bytes.push_back(Draw(random, 0, 9));
    }
    int64_t last_ns = LowerBoundNs(costs);
    for (std::optional<int64_t> bound_ns = last_ns; bound_ns.has_value(); bound_ns = MemoryLowerBoundNs(costs)) {
      CAPTURE(round, costs.memory->capacity_bytes);
      REQUIRE(*bound_ns >= last_ns);
      last_ns = *bound_ns;
      int64_t& capacity = costs.memory->capacity_bytes[Draw(random, 0, costs.shape.devices - 1)];
      capacity -= Draw(random, 1, 1 + capacity / 8);
    }
  }
}

struct Exhausted {
  int64_t capacities = 0;
  int64_t reached = 0;  // the best schedule takes no longer than the bound
};

// Every capacity that some schedule needs exactly, against the best schedule that fits it.
void ExhaustSmall(std::mt19937_64& random, int32_t devices, int32_t micro_batches, bool split, Exhausted& exhausted) {
  PipelineCosts costs = RandomCosts(random, PipelineShape::Linear(devices, micro_batches));
  costs.weight_grad_ns.clear();
  costs.memory = MemoryCosts{std::vector<int64_t>(devices, 1000), std::vector<int64_t>(devices, 1), {}, {}};
  const bool equal = Draw(random, 0, 1) == 0;
  for (int32_t stage = 0; stage < devices; ++stage) {
    costs.forward_ns[stage] = equal && stage > 0 ? costs.forward_ns[0] : Draw(random, 1, 9);
    costs.input_grad_ns[stage] = equal && stage > 0 ? costs.input_grad_ns[0] : Draw(random, 1, 9);
    if (split) {
      costs.weight_grad_ns.push_back(Draw(random, 1, 9));
    }
    costs.memory->activation_bytes.push_back(Draw(random, 1, 4));
    costs.memory->wgrad_bytes.push_back(Draw(random, 0, 4));
  }
  const std::vector<TriedSchedule> tried = TryAllSchedules(costs);
  for (int draw = 0; draw < 12; ++draw) {
    costs.memory->capacity_bytes = tried[Draw(random, 0, std::ssize(tried) - 1)].peak_bytes;
    const int64_t best_ns = ShortestWithin(tried, costs.memory->capacity_bytes);
    const int64_t bound_ns = MemoryLowerBoundNs(costs).value();
    CAPTURE(devices, micro_batches, split, CommModeName(costs.comm), costs.memory->capacity_bytes, costs.forward_ns,
            costs.input_grad_ns, costs.weight_grad_ns);
    REQUIRE(bound_ns <= best_ns);
    ++exhausted.capacities;
    exhausted.reached += bound_ns == best_ns ? 1 : 0;
  }
}

TEST_CASE("no schedule of a small pipeline beats the bound within the memory it fits, and many reach it") {
  const uint64_t seed = TestSeed(5);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  Exhausted exhausted;
  for (int round = 0; round < 60; ++round) {
    ExhaustSmall(random, 2, 3, true, exhausted);
    ExhaustSmall(random, 2, 5, false, exhausted);
    ExhaustSmall(random, 3, 4, false, exhausted);
  }
  ExhaustSmall(random, 3, 3, true, exhausted);
  ExhaustSmall(random, 2, 4, true, exhausted);
  CAPTURE(exhausted.capacities, exhausted.reached);
  CHECK(exhausted.reached * 3 > exhausted.capacities);
}

// One step of a random search for a better schedule: two neighbours change places.
bool Improve(std::mt19937_64& random, Schedule& schedule, PreparedSimulator& simulator, int64_t& iteration_ns) {
  auto& actions = schedule.devices[Draw(random, 0, schedule.shape.devices - 1)];
  if (actions.size() < 2) {
    return false;
  }
  const int64_t at = Draw(random, 0, std::ssize(actions) - 2);
  std::swap(actions[at], actions[at + 1]);
  if (Validate(schedule).ok()) {
    const auto outcome = simulator.Run(schedule);
    REQUIRE(outcome.ok());
    if (outcome->iteration_ns <= iteration_ns) {
      iteration_ns = outcome->iteration_ns;
      return true;
    }
  }
  std::swap(actions[at], actions[at + 1]);
  return false;
}

TEST_CASE("schedules of any placement and any messages, improved step by step, never beat the bound of their memory") {
  const uint64_t seed = TestSeed(6);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 250; ++round) {
    PipelineCosts costs = RandomCosts(random, RandomShape(random));
    costs.memory = MemoryCosts{
        std::vector<int64_t>(costs.shape.devices, 1'000'000), std::vector<int64_t>(costs.shape.devices, 2), {}, {}};
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      costs.memory->activation_bytes.push_back(Draw(random, 0, 6));
      costs.memory->wgrad_bytes.push_back(Draw(random, 0, 6));
    }
    Schedule schedule = RandomSchedule(random, costs.shape, !costs.weight_grad_ns.empty());
    PreparedSimulator simulator(costs);
    int64_t iteration_ns = simulator.Run(schedule).value().iteration_ns;
    for (int step = 0; step < 120; ++step) {
      if (!Improve(random, schedule, simulator, iteration_ns)) {
        continue;
      }
      const auto outcome = simulator.Run(schedule).value();
      PipelineCosts tight = costs;
      tight.memory->capacity_bytes.assign(outcome.peak_bytes.begin(), outcome.peak_bytes.end());
      CAPTURE(round, step, CommModeName(costs.comm), ToCsv(schedule));
      REQUIRE(MemoryLowerBoundNs(tight).value() <= outcome.iteration_ns);
      REQUIRE(LowerBoundNs(tight) <= outcome.iteration_ns);
    }
  }
}

TEST_CASE("rounds: where the cap hides less than the round trip, the bound is the schedule that fills every round") {
  // Two devices, unsplit, latency 100: two micro-batches at a time.
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 40);
  costs.forward_ns = {10, 10};
  costs.input_grad_ns = {20, 20};
  costs.boundaries = {BoundaryCost{true, {}, 0, 100, 0}};
  costs.memory = MemoryCosts{{4, 4}, {0, 0}, {2, 2}, {0, 0}};
  const Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value();
  const auto outcome = PreparedSimulator(costs).Run(schedule).value();
  CHECK(outcome.fits);
  // 20 rounds of 260, and the turn of the second micro-batch of the last.
  CHECK(outcome.iteration_ns == MemoryLowerBoundNs(costs).value());
  CHECK(outcome.iteration_ns == 20 * 260 + 30);
}

TEST_CASE("what W keeps beyond the activation limits how much of it can be put off, but for one full backward") {
  // Two devices, latency 100: the second has nothing but W to do while its last gradients go back.
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 40);
  costs.forward_ns = {10, 10};
  costs.input_grad_ns = {10, 10};
  costs.weight_grad_ns = {5, 10};
  costs.boundaries = {BoundaryCost{true, {}, 0, 100, 0}};
  costs.memory = MemoryCosts{{1'000, 20}, {0, 0}, {2, 2}, {2, 2}};
  const int64_t work_ns = 110 + 40 * 30;     // of the second device, from its first F on
  const int64_t way_back_ns = 100 + 10 + 5;  // after its last I
  CHECK(MemoryLowerBoundNs(costs).value() == work_ns + way_back_ns - 10 * 10);
  // Two before their I and one in a full backward, of 2 bytes, and two of 6 in place of ten of 2.
  costs.memory->wgrad_bytes[1] = 6;
  CHECK(MemoryLowerBoundNs(costs).value() == work_ns + way_back_ns - 5 * 10);
}

}  // namespace
}  // namespace geopipe
