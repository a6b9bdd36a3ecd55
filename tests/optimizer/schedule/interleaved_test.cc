#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

PipelineShape Interleaved(int32_t devices, int32_t stages, int32_t micro_batches) {
  return PipelineShape::Of(StageLayout::kLooped, devices, micro_batches, stages / devices);
}

TEST_CASE("interleaved runs groups of as many micro-batches as devices through one stage after the other") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kInterleaved, Interleaved(2, 4, 4)).value()) ==
        "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
        "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
}

TEST_CASE("interleaved warms up with 2 (P - 1 - p) + (v - 1) P forwards, up to all of them") {
  const Schedule schedule = MakeSchedule(ScheduleKind::kInterleaved, Interleaved(4, 12, 8)).value();
  REQUIRE(Validate(schedule).ok());
  for (int32_t device = 0; device < 4; ++device) {
    const std::vector<Action>& actions = schedule.devices[device];
    const auto first_backward = std::find_if(actions.begin(), actions.end(),
                                             [](const Action& action) { return action.kind == ActionKind::kBackward; });
    CHECK(first_backward - actions.begin() == 2 * (3 - device) + 2 * 4 + 1);
  }
  const Schedule all_warm_up = MakeSchedule(ScheduleKind::kInterleaved, Interleaved(3, 6, 3)).value();
  REQUIRE(Validate(all_warm_up).ok());
  CHECK(ToCsv(all_warm_up).starts_with("0F0,0F1,0F2,3F0,3F1,3F2,3B0,3B1,3B2,0B0,0B1,0B2\n"));
}

TEST_CASE("interleaved runs any number of micro-batches, in groups that differ by one at most") {
  // Fewer micro-batches than devices make one group.
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kInterleaved, Interleaved(3, 6, 2)).value()) ==
        "0F0,0F1,3F0,3F1,3B0,3B1,0B0,0B1\n"
        "1F0,1F1,4F0,4F1,4B0,4B1,1B0,1B1\n"
        "2F0,2F1,5F0,5B0,5F1,5B1,2B0,2B1\n");
  // 5 on 2 devices: groups of 3 and 2.
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kInterleaved, Interleaved(2, 4, 5)).value()) ==
        "0F0,0F1,0F2,2F0,2F1,2F2,2B0,0F3,2B1,0F4,2B2,2F3,0B0,2F4,0B1,0B2,2B3,2B4,0B3,0B4\n"
        "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1F3,1B0,1F4,1B1,3F3,1B2,3F4,3B3,3B4,1B3,1B4\n");
}

TEST_CASE("interleaved is valid for every shape") {
  for (int32_t devices = 1; devices <= 7; ++devices) {
    for (int32_t per_device = 2; per_device <= 4; ++per_device) {
      for (int32_t micro_batches = 1; micro_batches <= 4 * devices + 3; ++micro_batches) {
        const PipelineShape shape = Interleaved(devices, devices * per_device, micro_batches);
        CAPTURE(devices, per_device, micro_batches);
        REQUIRE(Validate(MakeSchedule(ScheduleKind::kInterleaved, shape).value()).ok());
      }
    }
  }
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](int32_t least, int32_t most) { return std::uniform_int_distribution(least, most)(random); };
  for (int round = 0; round < 100; ++round) {
    const int32_t devices = draw(2, 24);
    const PipelineShape shape = Interleaved(devices, devices * draw(2, 6), draw(1, 100));
    CAPTURE(shape.devices, shape.stages, shape.micro_batches);
    REQUIRE(Validate(MakeSchedule(ScheduleKind::kInterleaved, shape).value()).ok());
  }
}

TEST_CASE("what is in flight of each stage is what the lists say") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](int32_t least, int32_t most) { return std::uniform_int_distribution(least, most)(random); };
  for (int round = 0; round < 400; ++round) {
    const int32_t devices = draw(1, 9);
    const int32_t per_device = draw(2, 5);
    const int32_t micro_batches = draw(1, 90);
    const PipelineShape shape = Interleaved(devices, devices * per_device, micro_batches);
    const Schedule schedule = MakeSchedule(ScheduleKind::kInterleaved, shape).value();
    std::vector<int64_t> listed(shape.stages, 0);
    for (const std::vector<Action>& actions : schedule.devices) {
      std::vector<int64_t> now(shape.stages, 0);
      for (const Action& action : actions) {
        now[action.stage] += action.kind == ActionKind::kForward ? 1 : -1;
        listed[action.stage] = std::max(listed[action.stage], now[action.stage]);
      }
    }
    CAPTURE(devices, per_device, micro_batches);
    CHECK(InFlightOf(ScheduleKind::kInterleaved, shape, std::vector<int32_t>(shape.stages - 1, 0)) == listed);
  }
}

TEST_CASE("interleaved with one stage per device is 1F1B") {
  const PipelineShape shape = PipelineShape::Linear(3, 6);
  CHECK(MakeSchedule(ScheduleKind::kInterleaved, shape).value() ==
        MakeSchedule(ScheduleKind::kOneFOneB, shape).value());
}

TEST_CASE("interleaved says where it is not defined") {
  const auto message = [](const PipelineShape& shape) {
    return std::string(MakeSchedule(ScheduleKind::kInterleaved, shape, {}).status().message());
  };
  CHECK(message({4, 6, 8, {0, 1, 2, 3, 0, 1}}) ==
        "schedule interleaved runs as many stages per device: 6 stages on 4 devices given");
  CHECK(message({2, 4, 4, {0, 1, 1, 0}}) == "schedule interleaved runs stage 2 on device 0: placement[2] is 1");
}

}  // namespace
}  // namespace geopipe
