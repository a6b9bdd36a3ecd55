// Every generator on 1,000 random cases where it is defined.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kCases = 1000;

// Draws from low to high, smaller numbers more often.
int32_t DrawSize(std::mt19937_64& random, int32_t low, int32_t high) {
  const int64_t top = Draw(random, low, Draw(random, low, high));
  return static_cast<int32_t>(Draw(random, low, top));
}

std::vector<int64_t> DrawTimes(std::mt19937_64& random, int64_t count) {
  const int64_t most = Draw(random, 0, 1) == 0 ? 3 : 1'000'000;
  const int64_t least = Draw(random, 0, 3) == 0 ? 0 : 1;
  const bool equal = Draw(random, 0, 2) == 0;
  std::vector<int64_t> times(static_cast<size_t>(count), Draw(random, least, most));
  for (int64_t& time : times) {
    time = equal ? times.front() : Draw(random, least, most);
  }
  return times;
}

ScheduleCosts DrawCosts(std::mt19937_64& random, const PipelineShape& shape) {
  ScheduleCosts costs;
  if (Draw(random, 0, 3) != 0) {
    costs.forward_ns = DrawTimes(random, shape.stages);
    costs.input_grad_ns = DrawTimes(random, shape.stages);
    costs.weight_grad_ns = DrawTimes(random, shape.stages);
  }
  if (Draw(random, 0, 1) == 0) {
    costs.latency_ns = DrawTimes(random, shape.stages - 1);
    costs.serialization_ns = DrawTimes(random, shape.stages - 1);
  }
  if (Draw(random, 0, 1) == 0) {
    costs.activation_bytes = DrawTimes(random, shape.stages);
    costs.wgrad_bytes = DrawTimes(random, shape.stages);
  }
  if (Draw(random, 0, 1) == 0) {
    for (int32_t device = 0; device < shape.devices; ++device) {
      costs.activation_cap.push_back(Draw(random, 2, 2 * shape.devices + 2));
    }
  }
  return costs;
}

// Greatest number of activations alive from F to the end of the backward; W only counts for `until_weight`.
int64_t PeakAlive(const std::vector<Action>& actions, bool until_weight) {
  int64_t alive = 0;
  int64_t peak = 0;
  for (const Action& action : actions) {
    const ActionKind last = until_weight ? ActionKind::kWeightGradient : ActionKind::kInputGradient;
    alive += action.kind == ActionKind::kForward ? 1 : action.kind == last ? -1 : 0;
    peak = std::max(peak, alive);
  }
  return peak;
}

void CheckMemory(const ScheduleRow& row, const Schedule& schedule, const ScheduleCosts& costs, int64_t first_advance) {
  const int32_t devices = schedule.shape.devices;
  for (int32_t device = 0; device < devices; ++device) {
    const int64_t cap = costs.activation_cap.empty() ? int64_t{1} << 40 : costs.activation_cap[device];
    const int64_t in_flight = PeakAlive(schedule.devices[device], false);
    REQUIRE(in_flight <= cap);
    if (row.kind == ScheduleKind::kZbH1) {
      // 1F1B's own limit from F to I, and that of its first device from F to W.
      REQUIRE(PeakAlive(schedule.devices[device], true) <= std::min<int64_t>(devices, cap));
    } else if (row.kind == ScheduleKind::kZbH2) {
      // Half an activation at least is kept for W, so at most twice as many fit.
      REQUIRE(PeakAlive(schedule.devices[device], true) <= 2 * std::min<int64_t>(2 * devices, cap));
    } else if (row.kind == ScheduleKind::kZbV) {
      REQUIRE(in_flight <= 2 * devices);
    } else {
      REQUIRE(in_flight <= devices + first_advance);
    }
  }
}

TEST_CASE("every generator passes the validator wherever it is defined") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < kCases; ++round) {
    const int32_t devices = DrawSize(random, 2, 32);
    const int32_t micro_batches = DrawSize(random, 1, 256);
    const auto per_device = static_cast<int32_t>(Draw(random, 1, 4));
    for (const ScheduleRow& row : kSchedules) {
      if (row.make == nullptr) {
        continue;
      }
      const bool looped = row.layout == StageLayout::kLooped;  // groups of as many micro-batches as devices
      const PipelineShape shape = PipelineShape::Of(
          row.layout, devices, looped ? (micro_batches + devices - 1) / devices * devices : micro_batches, per_device);
      std::vector<int32_t> delta_n;
      int64_t advance = 0;
      for (int32_t boundary = 0; boundary + 1 < shape.stages; ++boundary) {
        delta_n.push_back(static_cast<int32_t>(Draw(random, 0, 4) == 0 ? Draw(random, 0, 5) : 0));
        advance += delta_n.back();
      }
      ScheduleCosts costs = DrawCosts(random, shape);
      CAPTURE(round, row.name, shape.devices, shape.stages, shape.micro_batches, delta_n, costs.activation_cap);
      const absl::StatusOr<Schedule> schedule = MakeSchedule(row.kind, shape, delta_n, costs);
      REQUIRE(schedule.status().ToString() == "OK");
      REQUIRE(Validate(*schedule).ToString() == "OK");
      if (row.splits_backward) {
        CheckMemory(row, *schedule, costs, advance);
      }
    }
  }
}

}  // namespace
}  // namespace geopipe
