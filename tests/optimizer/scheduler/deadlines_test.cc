#include "optimizer/scheduler/deadlines.h"

#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/scheduler/instance.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/auto_cases.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// True when every F and I of `schedule` starts by its latest start for the schedule's own iteration time.
bool StartsInTime(const PipelineCosts& costs, const Schedule& schedule) {
  const Instance instance = MakeInstance(costs);
  const SimulationResult simulated = Simulate(schedule, costs, {.record_timeline = true}).value();
  Deadlines deadlines(instance);
  deadlines.Compute(simulated.iteration_ns - costs.epilogue_ns, std::vector<int64_t>(instance.duration_ns.size(), 0));
  for (const auto& device : simulated.timeline) {
    for (const ActionTiming& timing : device) {
      if (timing.action.kind == ActionKind::kWeightGradient) {
        continue;
      }
      const Phase phase = timing.action.kind == ActionKind::kForward ? Phase::kForward : Phase::kInput;
      const int64_t latest_ns = deadlines.LatestStartNs(WorkOf(timing.action.stage, phase), timing.action.micro_batch);
      if (timing.start_ns > latest_ns) {
        UNSCOPED_INFO(ToString(timing.action) << " starts at " << timing.start_ns << ", at the latest " << latest_ns);
        return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("latest starts are necessary: no schedule within memory breaks its own", "[scheduler]") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (uint64_t i = 0; i < 30; ++i) {
    const SitedCase sited = MakeSitedCase(seed + i);
    INFO("case " << i);
    const AutoSchedule found = MakeAutoSchedule(sited.costs, {}, {.evaluations = 6}).value();
    CHECK(StartsInTime(sited.costs, found.schedule));
  }
}

TEST_CASE("latest starts by hand", "[scheduler]") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 2);
  costs.forward_ns = {10, 10};
  costs.input_grad_ns = {20, 20};
  costs.boundaries.resize(1);
  costs.boundaries[0].crosses = true;
  costs.boundaries[0].latency_ns = 5;
  costs.boundaries[0].serialization_ns = 3;
  const Instance instance = MakeInstance(costs);
  Deadlines deadlines(instance);
  deadlines.Compute(1'000, std::vector<int64_t>(6, 0));
  const WorkIndex f0 = WorkOf(0, Phase::kForward);
  const WorkIndex b0 = WorkOf(0, Phase::kInput);
  const WorkIndex f1 = WorkOf(1, Phase::kForward);
  const WorkIndex b1 = WorkOf(1, Phase::kInput);
  CHECK(deadlines.LatestStartNs(b0, 1) == 980);
  CHECK(deadlines.LatestStartNs(b1, 1) == 980 - 8 - 20);
  CHECK(deadlines.LatestStartNs(f1, 1) == 952 - 10);
  CHECK(deadlines.LatestStartNs(f0, 1) == 942 - 8 - 10);
  CHECK(deadlines.LatestStartNs(b0, 0) == 960);
  // Both backwards and one more forward must follow on device 1, and the way out after them.
  CHECK(deadlines.LatestStartNs(b1, 0) == 952 - 20);
  CHECK(deadlines.LatestStartNs(f1, 0) == 1'000 - 28 - 2 * 30);
  CHECK(deadlines.LatestStartNs(f0, 0) == 912 - 8 - 10);
}

}  // namespace geopipe
