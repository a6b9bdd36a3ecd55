#include "optimizer/plan/report/idle_causes.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "optimizer/schedule/schedule_table.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

std::vector<DeviceTime> TimesOf(const Schedule& schedule, const PipelineCosts& costs) {
  return FindIdleCauses(Simulate(schedule, costs, {.record_timeline = true}).value(), costs);
}

PipelineCosts TwoStages(int32_t micro_batches, int64_t latency_ns) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, micro_batches);
  costs.forward_ns = {10, 10};
  costs.input_grad_ns = {20, 20};
  costs.boundaries.resize(1);
  if (latency_ns > 0) {
    costs.boundaries[0] = {true, "", 1, latency_ns, 0};
  }
  return costs;
}

int64_t Of(const DeviceTime& time, IdleCause cause, int32_t index) {
  for (const IdleTime& idle : time.idle) {
    if (idle.cause == cause && idle.index == index) {
      return idle.ns;
    }
  }
  return 0;
}

TEST_CASE("a stage that waits for what is on its way over a crossing waits for the crossing") {
  const PipelineCosts costs = TwoStages(100, 10);
  const std::vector<DeviceTime> times = TimesOf(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs);
  // 1F1B's period is t + D = 40 of which 30 are work: stage 0 waits 20 for every other gradient, from that of
  // micro-batch 2 to that of 96; the last two are waited for in the drain.
  CHECK(Of(times[0], IdleCause::kLink, 0) == 48 * 20);
  CHECK(times[0].idle.front().cause == IdleCause::kLink);
  CHECK(Of(times[0], IdleCause::kWarmUp, 0) == 40);  // from its two forwards' end at 20 to the gradient's arrival at 60
  CHECK(Of(times[1], IdleCause::kWarmUp, 0) == 20);
  CHECK(times[1].busy_ns == 3000);
}

TEST_CASE("a stage that waits for a slower one waits for that stage") {
  PipelineCosts costs = TwoStages(100, 0);
  costs.forward_ns[1] = 15;
  costs.input_grad_ns[1] = 30;
  const std::vector<DeviceTime> times = TimesOf(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs);
  CHECK(times[0].idle.front().cause == IdleCause::kWork);
  CHECK(times[0].idle.front().index == 1);
  CHECK(times[0].idle.front().ns >= 97 * 15);
  CHECK(Of(times[1], IdleCause::kWork, 0) == 0);
}

TEST_CASE("a blocking send holds its stage, acknowledgement and all") {
  PipelineCosts costs = TwoStages(100, 10);
  costs.comm = CommMode::kBlocking;
  costs.boundaries[0].acknowledgement_ns = 5;
  // Work of 30 and a hold of 10 + 5 in each period, on either stage.
  for (const DeviceTime& time : TimesOf(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs)) {
    CHECK(Of(time, IdleCause::kHold, 0) + Of(time, IdleCause::kLink, 0) >= 97 * 15);
    CHECK(Of(time, IdleCause::kHold, 0) > 0);
    CHECK(Of(time, IdleCause::kWork, 0) + Of(time, IdleCause::kWork, 1) == 0);
  }
}

TEST_CASE("a stage far from the crossing that holds everyone up waits for that crossing") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(3, 100);
  costs.forward_ns.assign(3, 10);
  costs.input_grad_ns.assign(3, 20);
  costs.boundaries.resize(2);
  costs.boundaries[1] = {true, "", 1, 30, 0};
  const std::vector<DeviceTime> times = TimesOf(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs);
  // Stage 0 has no crossing of its own.
  CHECK(Of(times[0], IdleCause::kLink, 1) > 90 * 30);
  CHECK(Of(times[0], IdleCause::kLink, 0) == 0);
}

TEST_CASE("a slow stage binds although what others wait for is, when they wait, on its way over a crossing") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(3, 100);
  costs.forward_ns = {10, 10, 11};
  costs.input_grad_ns = {20, 20, 23};
  costs.boundaries.resize(2);
  costs.boundaries[0] = {true, "", 1, 3, 0};  // of the 4 that stages 0 and 1 are idle in each period
  const std::vector<DeviceTime> times = TimesOf(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs);
  CHECK(Of(times[0], IdleCause::kWork, 2) > 90 * 4);
  CHECK(Of(times[0], IdleCause::kLink, 0) == 0);
}

TEST_CASE("gpipe has no steady phase, and an epilogue is nobody's fault") {
  PipelineCosts costs = TwoStages(4, 10);
  costs.epilogue_ns = 7;
  for (const DeviceTime& time : TimesOf(MakeSchedule(ScheduleKind::kGpipe, costs.shape).value(), costs)) {
    CHECK(time.steady_ns == 0);
    CHECK(Of(time, IdleCause::kEpilogue, 0) == 7);
    CHECK(Of(time, IdleCause::kLink, 0) == 0);
  }
}

TEST_CASE("the chain goes from the beginning to the end of the last action without a gap") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const PipelineShape shape = RandomShape(random);
    const PipelineCosts costs = RandomCosts(random, shape);
    const auto result =
        Simulate(RandomSchedule(random, shape, !costs.weight_grad_ns.empty()), costs, {.record_timeline = true});
    if (!result.ok()) {
      continue;
    }
    int64_t at_ns = 0;
    for (const ChainSegment& segment : LongestChain(*result, costs)) {
      CHECK(segment.begin_ns == at_ns);
      CHECK(segment.end_ns > segment.begin_ns);
      at_ns = segment.end_ns;
    }
    CHECK(at_ns == result->iteration_ns - costs.epilogue_ns);
  }
}

TEST_CASE("work and idle times make up the iteration, whatever runs") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const PipelineShape shape = RandomShape(random);
    PipelineCosts costs = RandomCosts(random, shape);
    costs.epilogue_ns = Draw(random, 0, 3);
    const Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
    const auto result = Simulate(schedule, costs, {.record_timeline = true});
    if (!result.ok()) {
      continue;  // a deadlock of late-posted receives
    }
    const std::vector<DeviceTime> times = FindIdleCauses(*result, costs);
    REQUIRE(times.size() == static_cast<size_t>(shape.devices));
    for (size_t device = 0; device < times.size(); ++device) {
      const int64_t idle_ns = std::accumulate(times[device].idle.begin(), times[device].idle.end(), int64_t{0},
                                              [](int64_t sum, const IdleTime& idle) { return sum + idle.ns; });
      CHECK(times[device].busy_ns == result->busy_ns[device]);
      CHECK(times[device].busy_ns + idle_ns == result->iteration_ns);
      for (const IdleTime& idle : times[device].idle) {
        CHECK(idle.ns > 0);
        CHECK((idle.cause != IdleCause::kHold || costs.comm == CommMode::kBlocking));
      }
    }
  }
}

}  // namespace
}  // namespace geopipe
