// Schedules with actions out of place: refused with the fault named, or simulated to the end; never a hang.
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kRounds = 3000;

PipelineCosts CostsFor(std::mt19937_64& random, const PipelineShape& shape) {
  PipelineCosts costs;
  costs.shape = shape;
  costs.comm = static_cast<CommMode>(Draw(random, 0, 2));
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    costs.forward_ns.push_back(Draw(random, 0, 9));
    costs.input_grad_ns.push_back(Draw(random, 0, 9));
    costs.weight_grad_ns.push_back(Draw(random, 0, 9));
  }
  costs.boundaries.resize(static_cast<size_t>(shape.stages) - 1);
  for (BoundaryCost& boundary : costs.boundaries) {
    boundary.crosses = Draw(random, 0, 2) == 0;
    boundary.latency_ns = boundary.crosses ? Draw(random, 0, 20) : 0;
    boundary.serialization_ns = boundary.crosses ? Draw(random, 0, 20) : 0;
  }
  return costs;
}

// One kind of disorder: neighbours exchanged, an action moved elsewhere, a stretch shuffled.
void Disorder(std::mt19937_64& random, std::vector<Action>& actions) {
  const auto count = std::ssize(actions);
  const int64_t at = Draw(random, 0, count - 2);
  switch (Draw(random, 0, 4)) {
    case 0:
    case 1:
    case 2:
      std::swap(actions[at], actions[at + 1]);
      break;
    case 3: {
      const Action action = actions[at];
      actions.erase(actions.begin() + at);
      actions.insert(actions.begin() + Draw(random, std::max<int64_t>(0, at - 4), std::min(count - 1, at + 4)), action);
      break;
    }
    default:
      for (int64_t i = std::min(count - 1, at + 3); i > at; --i) {
        std::swap(actions[i], actions[Draw(random, at, i)]);
      }
  }
}

TEST_CASE("permuted schedules are refused with the fault named, or simulate to the end") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int changed = 0;
  int simulated = 0;
  for (int round = 0; round < kRounds; ++round) {
    const ScheduleRow& row = kSchedules[round % kSchedules.size()];
    if (row.make == nullptr) {
      continue;
    }
    const auto devices = static_cast<int32_t>(Draw(random, 2, 8));
    auto micro_batches = static_cast<int32_t>(Draw(random, 1, 16));
    if (row.layout == StageLayout::kLooped) {
      micro_batches = (micro_batches + devices - 1) / devices * devices;
    }
    const PipelineShape shape = PipelineShape::Of(row.layout, devices, micro_batches);
    const PipelineCosts costs = CostsFor(random, shape);
    std::vector<int32_t> delta_n(static_cast<size_t>(shape.stages) - 1, 0);
    delta_n[Draw(random, 0, shape.stages - 2)] = static_cast<int32_t>(Draw(random, 0, 3));
    const Schedule ordered = MakeSchedule(row.kind, shape, delta_n, ScheduleCostsOf(costs)).value();
    Schedule schedule = ordered;
    for (int64_t times = Draw(random, 1, 3); times > 0; --times) {
      Disorder(random, schedule.devices[Draw(random, 0, shape.devices - 1)]);
    }
    CAPTURE(round, row.name, ToCsv(schedule));
    const absl::Status verdict = Validate(schedule);
    const absl::StatusOr<SimulationResult> result = Simulate(schedule, costs, {.record_timeline = true});
    changed += schedule == ordered ? 0 : 1;
    if (verdict.ok()) {
      REQUIRE(result.status().ToString() == "OK");
      for (int32_t device = 0; device < shape.devices; ++device) {
        REQUIRE(result->timeline[device].size() == schedule.devices[device].size());
      }
      simulated += schedule == ordered ? 0 : 1;
    } else {
      REQUIRE(verdict.code() == absl::StatusCode::kInvalidArgument);
      REQUIRE(std::string(verdict.message()).starts_with("schedule, device "));
      // Out of order but not stuck: the simulation ends, with or without a deadlock.
      REQUIRE((result.ok() || result.status().code() == absl::StatusCode::kFailedPrecondition));
    }
  }
  INFO(simulated << " of " << changed << " permuted schedules simulate");
  CHECK(changed > kRounds * 8 / 10);
  CHECK(simulated >= changed * 3 / 10);
}

}  // namespace
}  // namespace geopipe
