#include <catch2/catch.hpp>
#include <string>
#include <tuple>

#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"

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

TEST_CASE("what is in flight of each stage is what the lists say") {
  for (const auto& [devices, per_device, groups] : {std::tuple{1, 2, 3}, {2, 2, 1}, {2, 3, 2}, {4, 2, 3}, {5, 4, 2}}) {
    const PipelineShape shape = Interleaved(devices, devices * per_device, groups * devices);
    const Schedule schedule = MakeSchedule(ScheduleKind::kInterleaved, shape).value();
    std::vector<int64_t> listed(shape.stages, 0);
    for (const std::vector<Action>& actions : schedule.devices) {
      std::vector<int64_t> now(shape.stages, 0);
      for (const Action& action : actions) {
        now[action.stage] += action.kind == ActionKind::kForward ? 1 : -1;
        listed[action.stage] = std::max(listed[action.stage], now[action.stage]);
      }
    }
    CAPTURE(devices, per_device, groups);
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
  CHECK(message(Interleaved(4, 8, 6)) ==
        "schedule interleaved runs micro-batches in groups of as many as there are devices: 6 micro-batches are not a "
        "multiple of 4");
  CHECK(message({4, 6, 8, {0, 1, 2, 3, 0, 1}}) ==
        "schedule interleaved runs as many stages per device: 6 stages on 4 devices given");
  CHECK(message({2, 4, 4, {0, 1, 1, 0}}) == "schedule interleaved runs stage 2 on device 0: placement[2] is 1");
}

}  // namespace
}  // namespace geopipe
