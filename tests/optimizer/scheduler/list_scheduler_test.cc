#include "optimizer/scheduler/list_scheduler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/schedule/validate.h"
#include "optimizer/scheduler/instance.h"
#include "optimizer/scheduler/sequence_timer.h"
#include "optimizer/simulator/lower_bound.h"
#include "tests/support/auto_cases.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// `stages_per_device` stages on each of `devices`, there and back again or round and round.
PipelineCosts StackedCosts(int32_t devices, int32_t stages_per_device, bool back_again, int64_t room) {
  PipelineCosts costs;
  costs.shape.devices = devices;
  costs.shape.stages = devices * stages_per_device;
  costs.shape.micro_batches = 12;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    const int32_t turn = stage / devices;
    const int32_t along = stage % devices;
    costs.shape.placement.push_back(back_again && turn % 2 == 1 ? devices - 1 - along : along);
  }
  costs.forward_ns.assign(costs.shape.placement.size(), 10);
  costs.input_grad_ns.assign(costs.shape.placement.size(), 11);
  costs.weight_grad_ns.assign(costs.shape.placement.size(), 7);
  costs.boundaries.resize(costs.shape.placement.size() - 1);
  costs.memory.emplace();
  costs.memory->capacity_bytes.assign(static_cast<size_t>(devices), 2 * room);
  costs.memory->static_bytes.assign(static_cast<size_t>(devices), 0);
  costs.memory->activation_bytes.assign(costs.shape.placement.size(), 2);
  costs.memory->wgrad_bytes.assign(costs.shape.placement.size(), 1);
  return costs;
}

bool BuildsValid(const PipelineCosts& costs, ListScheduler& scheduler, const Instance& instance,
                 const ListOptions& options) {
  return scheduler.Build(options) && Fits(instance, scheduler.sequences()) &&
         Validate(ToSchedule(instance, costs.shape, scheduler.sequences())).ok();
}

}  // namespace

TEST_CASE("list schedules are valid and within memory", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (uint64_t i = 0; i < 30; ++i) {
    const SitedCase sited = MakeSitedCase(seed + 1'000 + i);
    INFO("case " << i);
    const Instance instance = MakeInstance(sited.costs);
    ListScheduler scheduler(instance);
    for (const int64_t percent : {90, 100, 120}) {
      const int64_t target_ns = LowerBoundNs(sited.costs) * percent / 100;
      CHECK(BuildsValid(sited.costs, scheduler, instance, {target_ns, Lookahead::kWorstLateness}));
      CHECK(BuildsValid(sited.costs, scheduler, instance, {target_ns, Lookahead::kAddedLateness}));
    }
  }
}

TEST_CASE("several stages on a device", "[scheduler]") {
  for (const bool back_again : {false, true}) {
    for (const int32_t stages_per_device : {2, 3}) {
      for (const int64_t room : {4, 8, 40}) {
        const PipelineCosts costs = StackedCosts(4, stages_per_device, back_again, room);
        const Instance instance = MakeInstance(costs);
        ListScheduler scheduler(instance);
        INFO(stages_per_device << " stages, back again " << back_again << ", room " << room);
        CHECK(BuildsValid(costs, scheduler, instance, {LowerBoundNs(costs), Lookahead::kWorstLateness}));
      }
    }
  }
}

// Activations recomputed for I are kept for W, so I takes more memory than it frees.
TEST_CASE("where W keeps more than F did, forwards leave room for it", "[scheduler]") {
  for (const bool back_again : {false, true}) {
    for (const int64_t room : {6, 7, 9, 14, 40}) {
      PipelineCosts costs = StackedCosts(3, 2, back_again, room);
      costs.memory->wgrad_bytes.assign(costs.shape.placement.size(), 5);
      const Instance instance = MakeInstance(costs);
      ListScheduler scheduler(instance);
      CAPTURE(back_again, room);
      CHECK(BuildsValid(costs, scheduler, instance, {LowerBoundNs(costs), Lookahead::kWorstLateness}));
    }
  }
}

TEST_CASE("forwards leave room for what the next I adds, not for what each will", "[scheduler]") {
  PipelineCosts costs = StackedCosts(2, 1, false, 12);
  costs.memory->wgrad_bytes.assign(2, 5);
  costs.boundaries[0].crosses = true;
  costs.boundaries[0].latency_ns = 1'000;
  const Instance instance = MakeInstance(costs);
  ListScheduler scheduler(instance);
  REQUIRE(BuildsValid(costs, scheduler, instance, {LowerBoundNs(costs), Lookahead::kWorstLateness}));
  const std::vector<WorkIndex>& first = scheduler.sequences().front();
  const auto backward = std::ranges::find(first, WorkOf(0, Phase::kInput));
  CHECK(backward - first.begin() == (24 - 3) / 2);
}

TEST_CASE("without room for one micro-batch nothing is built", "[scheduler]") {
  const PipelineCosts costs = StackedCosts(2, 1, false, 0);
  const Instance instance = MakeInstance(costs);
  ListScheduler scheduler(instance);
  CHECK_FALSE(scheduler.Build({1'000, Lookahead::kWorstLateness}));
}

TEST_CASE("a list schedule over the limit is not built to its end", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (uint64_t i = 0; i < 20; ++i) {
    const SitedCase sited = MakeSitedCase(seed + 3'000 + i);
    INFO("case " << i);
    const Instance instance = MakeInstance(sited.costs);
    ListScheduler scheduler(instance);
    ListOptions options{LowerBoundNs(sited.costs), Lookahead::kWorstLateness};
    REQUIRE(scheduler.Build(options));
    const int64_t end_ns = scheduler.end_ns();
    const Sequences sequences = scheduler.sequences();
    CHECK(SequenceTimer(instance).Run(sequences) <= end_ns);
    options.limit_ns = end_ns;
    REQUIRE(scheduler.Build(options));
    CHECK(scheduler.sequences() == sequences);
    options.limit_ns = end_ns - 1;
    CHECK_FALSE(scheduler.Build(options));
  }
}

TEST_CASE("without a crossing 1F1B's bubble is all that is left", "[scheduler]") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(4, 16);
  costs.forward_ns.assign(4, 10);
  costs.input_grad_ns.assign(4, 20);
  costs.boundaries.resize(3);
  const Instance instance = MakeInstance(costs);
  ListScheduler scheduler(instance);
  REQUIRE(scheduler.Build({LowerBoundNs(costs), Lookahead::kWorstLateness}));
  CHECK(SequenceTimer(instance).Run(scheduler.sequences()) == (16 + 3) * 30);
}

}  // namespace geopipe
