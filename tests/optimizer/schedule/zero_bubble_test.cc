// The schedules that split the backward: small cases as text, their limits, and where they are not defined.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/split_backward.h"
#include "optimizer/schedule/validate.h"

namespace geopipe {
namespace {

PipelineShape Folded(int32_t devices, int32_t micro_batches) {
  return PipelineShape::Of(StageLayout::kFolded, devices, micro_batches);
}

// Equal F, I and W of every stage, no crossings.
TimedSchedule TimedEqual(const Schedule& schedule) {
  return Timed(schedule, ResolveCosts("test", schedule.shape, {}).value());
}

TEST_CASE("zb-h1 of 4 devices and 8 micro-batches") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbH1, PipelineShape::Linear(4, 8)).value()) ==
        "0F0,0F1,0F2,0F3,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,0I5,0W5,0I6,0W6,0I7,0W7\n"
        "1F0,1F1,1F2,1I0,1F3,1I1,1W0,1F4,1I2,1W1,1F5,1I3,1W2,1F6,1I4,1W3,1F7,1I5,1W4,1I6,1W5,1I7,1W6,1W7\n"
        "2F0,2F1,2I0,2F2,2I1,2F3,2I2,2W0,2F4,2I3,2W1,2F5,2I4,2W2,2F6,2I5,2W3,2F7,2I6,2W4,2I7,2W5,2W6,2W7\n"
        "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,3F4,3I4,3W1,3F5,3I5,3W2,3F6,3I6,3W3,3F7,3I7,3W4,3W5,3W6,3W7\n");
}

TEST_CASE("zb-h2 of 3 devices and 6 micro-batches") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbH2, PipelineShape::Linear(3, 6)).value()) ==
        "0F0,0F1,0F2,0F3,0F4,0I0,0F5,0I1,0W0,0I2,0W1,0I3,0W2,0I4,0W3,0I5,0W4,0W5\n"
        "1F0,1F1,1F2,1I0,1F3,1I1,1F4,1I2,1F5,1I3,1W0,1I4,1W1,1I5,1W2,1W3,1W4,1W5\n"
        "2F0,2I0,2F1,2I1,2F2,2I2,2F3,2I3,2F4,2I4,2F5,2I5,2W0,2W1,2W2,2W3,2W4,2W5\n");
}

TEST_CASE("zb-v of 2 devices and 4 micro-batches") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbV, Folded(2, 4)).value()) ==
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,0I0,3W1,0I1,0F3,3F2,3I2,3W2,0W0,0I2,0W1,3F3,3I3,3W3,0W2,0I3,0W3\n"
        "1F0,2F0,1F1,2F1,2I0,1I0,2W0,2I1,1I1,1F2,2F2,2W1,1W0,2I2,1I2,1F3,2F3,2W2,1W1,2I3,1I3,2W3,1W2,1W3\n");
}

TEST_CASE("geopipe-zb of 3 devices and 6 micro-batches fills the gaps of a crossing with weight gradients") {
  ScheduleCosts costs;
  costs.forward_ns = costs.input_grad_ns = costs.weight_grad_ns = {10, 10, 10};
  costs.latency_ns = {0, 30};
  costs.serialization_ns = {0, 0};
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kGeoPipeZb, PipelineShape::Linear(3, 6), std::vector<int32_t>{0, 2}, costs)
                  .value()) ==
        "0F0,0F1,0F2,0F3,0F4,0I0,0W0,0F5,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5\n"
        "1F0,1F1,1F2,1F3,1I0,1F4,1I1,1W0,1F5,1I2,1W1,1I3,1W2,1I4,1W3,1I5,1W4,1W5\n"
        "2F0,2I0,2F1,2I1,2F2,2I2,2F3,2I3,2F4,2I4,2W0,2F5,2I5,2W1,2W2,2W3,2W4,2W5\n");
}

TEST_CASE(
    "with equal times zb-h1 takes m t + (P - 1)(F + I - W), zb-h2 leaves no bubble in any device, zb-v hardly any") {
  for (const int32_t devices : {2, 3, 4, 8, 16}) {
    for (const int32_t rounds : {2, 3, 4}) {
      const int32_t micro_batches = rounds * devices;
      CAPTURE(devices, micro_batches);
      const PipelineShape shape = PipelineShape::Linear(devices, micro_batches);
      CHECK(TimedEqual(MakeSchedule(ScheduleKind::kOneFOneB, shape).value()).end_ns ==
            3 * micro_batches + 3 * (devices - 1));
      CHECK(TimedEqual(MakeSchedule(ScheduleKind::kZbH1, shape).value()).end_ns == 3 * micro_batches + (devices - 1));
      CHECK(TimedEqual(MakeSchedule(ScheduleKind::kZbH2, shape).value()).longest_span_ns == 3 * micro_batches);
      CHECK(TimedEqual(MakeSchedule(ScheduleKind::kZbV, Folded(devices, micro_batches)).value()).longest_span_ns <=
            6 * micro_batches + micro_batches / 6);
    }
  }
}

TEST_CASE("split backwards on one device, of one micro-batch") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbH1, PipelineShape::Linear(1, 1)).value()) == "0F0,0I0,0W0\n");
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbH2, PipelineShape::Linear(1, 1)).value()) == "0F0,0I0,0W0\n");
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kZbV, Folded(1, 1)).value()) == "0F0,1F0,1I0,0I0,1W0,0W0\n");
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kGeoPipeZb, PipelineShape::Linear(1, 1), {}).value()) == "0F0,0I0,0W0\n");
}

TEST_CASE("durations of nothing, or of one thing alone, still give a schedule") {
  const PipelineShape shape = PipelineShape::Linear(4, 9);
  for (const int only : {0, 1, 2, 3}) {
    ScheduleCosts costs;
    costs.forward_ns.assign(4, only == 1 ? 7 : 0);
    costs.input_grad_ns.assign(4, only == 2 ? 7 : 0);
    costs.weight_grad_ns.assign(4, only == 3 ? 7 : 0);
    CAPTURE(only);
    CHECK(Validate(MakeSchedule(ScheduleKind::kZbH1, shape, {}, costs).value()).ok());
    CHECK(Validate(MakeSchedule(ScheduleKind::kZbH2, shape, {}, costs).value()).ok());
    CHECK(Validate(MakeSchedule(ScheduleKind::kGeoPipeZb, shape, std::vector<int32_t>{0, 1, 0}, costs).value()).ok());
  }
}

TEST_CASE("schedules that split the backward say where they are not defined") {
  const PipelineShape shape = PipelineShape::Linear(2, 4);
  const auto message = [](ScheduleKind kind, const PipelineShape& given, const std::vector<int32_t>& delta_n = {},
                          const ScheduleCosts& costs = {}) {
    return std::string(MakeSchedule(kind, given, delta_n, costs).status().message());
  };
  ScheduleCosts whole;
  whole.forward_ns = whole.input_grad_ns = {1, 1};
  CHECK(message(ScheduleKind::kZbH1, shape, {}, whole) ==
        "schedule zb-h1 splits the backward, but the costs give no weight gradient time (weight_grad_s)");
  CHECK(message(ScheduleKind::kGeoPipeZb, shape, {1}, whole) ==
        "schedule geopipe-zb splits the backward, but the costs give no weight gradient time (weight_grad_s)");
  CHECK(message(ScheduleKind::kGeoPipeZb, shape, {-1}) == "delta_n of boundary 0 is -1: it must not be negative");
  CHECK(message(ScheduleKind::kZbH2, {2, 2, 4, {1, 0}}) ==
        "schedule zb-h2 runs stage 0 on device 0: placement[0] is 1");
  CHECK(message(ScheduleKind::kZbH1, Folded(2, 4)) ==
        "schedule zb-h1 runs one stage per device: 4 stages on 2 devices given");
  CHECK(message(ScheduleKind::kZbV, shape) == "schedule zb-v runs two stages per device: 2 stages on 2 devices given");
  CHECK(message(ScheduleKind::kZbV, {2, 4, 4, {0, 1, 0, 1}}) ==
        "schedule zb-v runs stage 2 on device 1: placement[2] is 0");
}

TEST_CASE("costs that do not fit the shape are named") {
  const PipelineShape shape = PipelineShape::Linear(2, 4);
  const auto message = [&shape](const ScheduleCosts& costs) {
    return std::string(MakeSchedule(ScheduleKind::kZbH1, shape, {}, costs).status().message());
  };
  ScheduleCosts costs;
  costs.forward_ns = costs.input_grad_ns = costs.weight_grad_ns = {1, 1};
  costs.forward_ns = {1};
  CHECK(message(costs) == "schedule zb-h1: forward_ns has 1 entries: it needs 2");
  costs.forward_ns = {1, -1};
  CHECK(message(costs) == "schedule zb-h1: forward_ns[1] is -1: it must not be negative");
  costs.forward_ns = {1, int64_t{4'000'000'000'000'000'000}};
  CHECK(message(costs) ==
        "schedule zb-h1: all durations of an iteration add up to 1.6e+10 s: they must stay below 4e+09 s");
  costs.forward_ns = {1, 1};
  costs.activation_cap = {3, 0};
  CHECK(message(costs) == "schedule zb-h1: activation_cap[1] is 0: it must be at least 1");
  costs.activation_cap.clear();
  costs.wgrad_bytes = {1, 1};
  CHECK(message(costs) == "schedule zb-h1: activation_bytes has 0 entries: it needs 2");
}

}  // namespace
}  // namespace geopipe
