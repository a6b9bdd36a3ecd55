#include "optimizer/scheduler/sequence_timer.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "optimizer/scheduler/instance.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// No durations of zero: with them messages of several devices enter a link at one instant, in an order that only the
// simulator keeps track of.
PipelineCosts PositiveCosts(std::mt19937_64& random, const PipelineShape& shape) {
  PipelineCosts costs = RandomCosts(random, shape);
  costs.comm = CommMode::kNonBlocking;
  for (std::vector<int64_t>* durations : {&costs.forward_ns, &costs.input_grad_ns, &costs.weight_grad_ns}) {
    for (int64_t& duration_ns : *durations) {
      duration_ns = 1 + duration_ns;
    }
  }
  return costs;
}

}  // namespace

TEST_CASE("times sequences as the simulator does", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int timed = 0;
  while (timed < 300) {
    const PipelineShape shape = RandomShape(random);
    const PipelineCosts costs = PositiveCosts(random, shape);
    const Instance instance = MakeInstance(costs);
    const Schedule drawn = RandomSchedule(random, shape, instance.split);
    Sequences sequences;
    if (!ToSequences(instance, drawn, sequences)) {
      continue;  // its forwards are out of order
    }
    ++timed;
    const Schedule schedule = ToSchedule(instance, shape, sequences);
    const SimulationResult simulated = Simulate(schedule, costs, {.record_timeline = true}).value();
    SequenceTimer timer(instance);
    REQUIRE(timer.Run(sequences) + costs.epilogue_ns == simulated.iteration_ns);
    REQUIRE(timer.Run(sequences) + costs.epilogue_ns == simulated.iteration_ns);  // with nothing left of the first run
    for (const auto& device : simulated.timeline) {
      for (const ActionTiming& timing : device) {
        const Phase phase = timing.action.kind == ActionKind::kForward          ? Phase::kForward
                            : timing.action.kind == ActionKind::kWeightGradient ? Phase::kWeight
                                                                                : Phase::kInput;
        REQUIRE(timer.StartNs(WorkOf(timing.action.stage, phase), timing.action.micro_batch) == timing.start_ns);
      }
    }
    if (costs.memory.has_value()) {
      CHECK(Fits(instance, sequences) == simulated.fits);
    }
  }
}

TEST_CASE("a deadlock is told apart from an end", "[scheduler]") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 1);
  costs.forward_ns = {1, 1};
  costs.input_grad_ns = {2, 2};
  costs.boundaries.resize(1);
  const Instance instance = MakeInstance(costs);
  SequenceTimer timer(instance);
  CHECK(timer.Run({{0, 1}, {3, 4}}) == 6);
  CHECK(timer.last_device() == 0);
  CHECK(timer.Run({{1, 0}, {3, 4}}) == SequenceTimer::kDeadlock);
}

}  // namespace geopipe
