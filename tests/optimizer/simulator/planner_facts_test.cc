// The facts about GeoPipe's ΔN that the design states, over many random parameters: equal stages, non-blocking
// messages.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kFactRounds = 300;

// Equal stages with one forward and one backward time; any number of crossings.
struct Pipe {
  int32_t devices = 0;
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  std::vector<BoundaryCost> boundaries;
  CommMode comm = CommMode::kNonBlocking;

  int64_t T() const { return forward_ns + backward_ns; }

  PipelineCosts Costs(int32_t micro_batches) const {
    PipelineCosts costs;
    costs.shape = PipelineShape::Linear(devices, micro_batches);
    costs.forward_ns.assign(static_cast<size_t>(devices), forward_ns);
    costs.input_grad_ns.assign(static_cast<size_t>(devices), backward_ns);
    costs.boundaries = boundaries;
    costs.comm = comm;
    return costs;
  }

  // Iteration time with `delta_n` on every boundary that crosses.
  int64_t IterationNs(int32_t micro_batches, const std::vector<int32_t>& delta_n) const {
    const PipelineCosts costs = Costs(micro_batches);
    return Simulate(MakeSchedule(ScheduleKind::kGeoPipe, costs.shape, delta_n).value(), costs).value().iteration_ns;
  }
};

Pipe RandomPipe(std::mt19937_64& random) {
  Pipe pipe;
  pipe.devices = static_cast<int32_t>(Draw(random, 2, 6));
  pipe.forward_ns = Draw(random, 1, 100);
  pipe.backward_ns = Draw(random, 1, 200);
  pipe.boundaries.resize(static_cast<size_t>(pipe.devices) - 1);
  return pipe;
}

// Adds a crossing and returns its D = latency + serialization.
int64_t AddCrossing(std::mt19937_64& random, Pipe& pipe, size_t boundary, int64_t max_serialization_ns) {
  BoundaryCost& cost = pipe.boundaries[boundary];
  cost.crosses = true;
  cost.serialization_ns = Draw(random, 0, max_serialization_ns);
  cost.latency_ns = Draw(random, 0, 4 * pipe.T());
  return cost.latency_ns + cost.serialization_ns;
}

struct OneCrossing {
  Pipe pipe;
  size_t boundary = 0;
  int64_t d_ns = 0;

  std::vector<int32_t> DeltaN(int64_t delta_n) const {
    std::vector<int32_t> all(pipe.boundaries.size(), 0);
    all[boundary] = static_cast<int32_t>(delta_n);
    return all;
  }
};

OneCrossing RandomOneCrossing(std::mt19937_64& random) {
  OneCrossing one;
  one.pipe = RandomPipe(random);
  one.boundary = static_cast<size_t>(Draw(random, 0, one.pipe.devices - 2));
  one.d_ns = AddCrossing(random, one.pipe, one.boundary, one.pipe.T());
  return one;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

TEST_CASE("steady period of 1F1B is t + D, with delta_n max(t, 2(t + D) / (2 + delta_n))") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kFactRounds; ++round) {
    const OneCrossing one = RandomOneCrossing(random);
    const int64_t t = one.pipe.T();
    for (const int64_t delta_n : {int64_t{0}, Draw(random, 1, 6)}) {
      const auto turn = static_cast<int32_t>(2 + delta_n);
      const int32_t small = 30 * turn;
      const int32_t turns = 5;
      const int64_t grown_ns = one.pipe.IterationNs(small + turns * turn, one.DeltaN(delta_n)) -
                               one.pipe.IterationNs(small, one.DeltaN(delta_n));
      CAPTURE(round, one.pipe.devices, one.boundary, t, one.d_ns, delta_n);
      // 2 + delta_n micro-batches take (2 + delta_n) periods.
      REQUIRE(grown_ns == turns * std::max(turn * t, 2 * (t + one.d_ns)));
    }
  }
}

TEST_CASE("the least delta_n that hides the crossing is ceil(2D / t), from there the iteration is the lower bound") {
  const uint64_t seed = TestSeed(1);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kFactRounds; ++round) {
    const OneCrossing one = RandomOneCrossing(random);
    const int64_t t = one.pipe.T();
    const int64_t least = CeilDiv(2 * one.d_ns, t);
    const auto micro_batches = static_cast<int32_t>(Draw(random, 40, 80) * (least + 2));
    const int64_t ideal_ns = (micro_batches + one.pipe.devices - 1) * t + 2 * one.d_ns;
    CAPTURE(round, one.pipe.devices, one.boundary, t, one.d_ns, least, micro_batches);
    for (const int64_t delta_n : {least, least + 1, least + 5}) {
      REQUIRE(one.pipe.IterationNs(micro_batches, one.DeltaN(delta_n)) == ideal_ns);
    }
    REQUIRE(LowerBoundNs(one.pipe.Costs(micro_batches)) == ideal_ns);
    if (least > 0) {
      REQUIRE(one.pipe.IterationNs(micro_batches, one.DeltaN(least - 1)) > ideal_ns);
    }
  }
}

TEST_CASE("with several crossings, delta_n of ceil(2 D_k / t) each reaches (m + P - 1) t + 2 sum of D_k") {
  const uint64_t seed = TestSeed(2);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kFactRounds; ++round) {
    Pipe pipe = RandomPipe(random);
    std::vector<int32_t> delta_n(pipe.boundaries.size(), 0);
    int64_t d_sum_ns = 0;
    for (size_t boundary = 0; boundary < delta_n.size(); ++boundary) {
      if (Draw(random, 0, 1) == 0) {
        const int64_t d_ns = AddCrossing(random, pipe, boundary, std::min(pipe.forward_ns, pipe.backward_ns));
        delta_n[boundary] = static_cast<int32_t>(CeilDiv(2 * d_ns, pipe.T()));
        d_sum_ns += d_ns;
      }
    }
    const auto micro_batches = static_cast<int32_t>(Draw(random, 1, 120));
    const int64_t ideal_ns = (micro_batches + pipe.devices - 1) * pipe.T() + 2 * d_sum_ns;
    CAPTURE(round, pipe.devices, pipe.forward_ns, pipe.backward_ns, delta_n, micro_batches);
    REQUIRE(pipe.IterationNs(micro_batches, delta_n) == ideal_ns);
    REQUIRE(LowerBoundNs(pipe.Costs(micro_batches)) == ideal_ns);
  }
}

// 1F1B whose every stage, the last one included, runs `extra` more forwards ahead.
Schedule AdvanceEverywhere(const PipelineShape& shape, int32_t extra) {
  Schedule schedule{shape, std::vector<std::vector<Action>>(shape.devices)};
  for (int32_t stage = 0; stage < shape.devices; ++stage) {
    const int32_t warm_up = std::min(shape.micro_batches, shape.devices - 1 - stage + extra);
    int32_t forwards = 0;
    for (int32_t backwards = 0; backwards < shape.micro_batches; ++backwards) {
      while (forwards < std::min(shape.micro_batches, backwards + warm_up + 1)) {
        schedule.devices[stage].push_back({stage, ActionKind::kForward, forwards++});
      }
      schedule.devices[stage].push_back({stage, ActionKind::kBackward, backwards});
    }
  }
  return schedule;
}

TEST_CASE("negative control: the same extra advance on every stage gains nothing in the steady period") {
  const uint64_t seed = TestSeed(3);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kFactRounds; ++round) {
    const OneCrossing one = RandomOneCrossing(random);
    const auto extra = static_cast<int32_t>(Draw(random, 1, 6));
    const int32_t small = 60;
    const int32_t more = 20;
    const auto iteration_ns = [&](int32_t micro_batches) {
      const PipelineCosts costs = one.pipe.Costs(micro_batches);
      const Schedule schedule = AdvanceEverywhere(costs.shape, extra);
      REQUIRE(Validate(schedule).ok());
      return Simulate(schedule, costs).value().iteration_ns;
    };
    CAPTURE(round, one.pipe.devices, one.boundary, one.pipe.T(), one.d_ns, extra);
    REQUIRE(iteration_ns(small + more) - iteration_ns(small) == more * (one.pipe.T() + one.d_ns));
  }
}

TEST_CASE("negative control: with receives posted late (rendezvous) delta_n gains nothing") {
  const uint64_t seed = TestSeed(4);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kFactRounds; ++round) {
    OneCrossing one = RandomOneCrossing(random);
    one.pipe.comm = CommMode::kRendezvous;
    const auto micro_batches = static_cast<int32_t>(Draw(random, 1, 100));
    const int64_t delta_n = Draw(random, 1, 8);
    CAPTURE(round, one.pipe.devices, one.boundary, one.pipe.T(), one.d_ns, micro_batches, delta_n);
    REQUIRE(one.pipe.IterationNs(micro_batches, one.DeltaN(delta_n)) >=
            one.pipe.IterationNs(micro_batches, one.DeltaN(0)));
  }
}

}  // namespace
}  // namespace geopipe
