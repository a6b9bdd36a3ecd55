// Every row of the table of schedules: its generator, what it says of memory, and bounds on it.
#include "optimizer/schedule/schedule_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/simulator.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kRounds = 200;

std::vector<int64_t> DrawTimes(std::mt19937_64& random, int64_t count) {
  std::vector<int64_t> times;
  const int64_t base_ns = Draw(random, 1, 1'000);
  for (int64_t i = 0; i < count; ++i) {
    times.push_back(base_ns + Draw(random, 0, base_ns / 4));
  }
  return times;
}

PipelineCosts DrawCosts(std::mt19937_64& random, const PipelineShape& shape) {
  PipelineCosts costs;
  costs.shape = shape;
  costs.forward_ns = DrawTimes(random, shape.stages);
  costs.input_grad_ns = DrawTimes(random, shape.stages);
  costs.weight_grad_ns = DrawTimes(random, shape.stages);
  costs.boundaries.resize(static_cast<size_t>(shape.stages) - 1);
  for (BoundaryCost& boundary : costs.boundaries) {
    boundary.crosses = Draw(random, 0, 2) == 0;
    boundary.latency_ns = boundary.crosses ? Draw(random, 0, 5'000) : 0;
    boundary.serialization_ns = boundary.crosses ? Draw(random, 0, 1'000) : 0;
  }
  return costs;
}

// Micro-batches in flight of one stage, as the simulator measures them: its activations are one byte each, those of
// others none.
int64_t MeasuredInFlight(const Schedule& schedule, PipelineCosts costs, int32_t stage) {
  const auto devices = static_cast<size_t>(costs.shape.devices);
  const auto stages = static_cast<size_t>(costs.shape.stages);
  costs.memory = MemoryCosts{.capacity_bytes = std::vector<int64_t>(devices, 1),
                             .static_bytes = std::vector<int64_t>(devices, 0),
                             .activation_bytes = std::vector<int64_t>(stages, 0),
                             .wgrad_bytes = std::vector<int64_t>(stages, 0)};
  costs.memory->activation_bytes[stage] = 1;
  return Simulate(schedule, costs)->peak_bytes[costs.shape.placement[stage]];
}

TEST_CASE("every row: valid schedules, memory that the simulator measures, no time below the bound") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const ScheduleRow& row : kSchedules) {
    int attained = 0;
    for (int round = 0; round < kRounds && row.make != nullptr; ++round) {
      const auto devices = static_cast<int32_t>(Draw(random, 1, 6));
      auto micro_batches = static_cast<int32_t>(Draw(random, 1, 24));
      if (row.layout == StageLayout::kLooped) {
        micro_batches = (micro_batches + devices - 1) / devices * devices;
      }
      const PipelineShape shape = PipelineShape::Of(row.layout, devices, micro_batches);
      const PipelineCosts costs = DrawCosts(random, shape);
      std::vector<int32_t> delta_n(costs.boundaries.size(), 0);
      for (size_t boundary = 0; boundary < delta_n.size(); ++boundary) {
        const bool advances = row.uses_delta_n && costs.boundaries[boundary].crosses;
        delta_n[boundary] = advances ? static_cast<int32_t>(Draw(random, 0, 3)) : 0;
      }
      CAPTURE(row.name, round, devices, micro_batches, delta_n);
      const absl::StatusOr<Schedule> schedule = MakeSchedule(row.kind, shape, delta_n, ScheduleCostsOf(costs));
      REQUIRE(schedule.status().ToString() == "OK");
      REQUIRE(Validate(*schedule).ToString() == "OK");
      REQUIRE(Simulate(*schedule, costs)->iteration_ns >= ScheduleBoundNs(row.kind, costs, delta_n));
      const std::vector<int64_t> in_flight = InFlightOf(row.kind, shape, delta_n);
      for (int32_t stage = 0; stage < shape.stages; ++stage) {
        const int64_t measured = MeasuredInFlight(*schedule, costs, stage);
        CAPTURE(stage, measured, in_flight[stage]);
        REQUIRE((row.splits_backward ? measured <= in_flight[stage] : measured == in_flight[stage]));
        attained += measured == in_flight[stage] && measured < micro_batches ? 1 : 0;
      }
    }
    CAPTURE(row.name);
    CHECK((attained > 0 || row.make == nullptr || row.order == ScheduleOrder::kForwardsFirst));
  }
}

}  // namespace
}  // namespace geopipe
