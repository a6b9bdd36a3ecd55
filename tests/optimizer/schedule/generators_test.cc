#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/schedule/validate.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("1f1b of 4 devices and 8 micro-batches") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(4, 8)).value()) ==
        "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
        "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
        "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
        "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n");
}

TEST_CASE("gpipe runs all forwards, then all backwards") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(2, 3)).value()) ==
        "0F0,0F1,0F2,0B0,0B1,0B2\n"
        "1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST_CASE("geopipe advances every stage upstream of the crossing") {
  // delta_n 2 between stages 1 and 2: two more forwards ahead on stages 0 and 1, none after.
  CHECK(
      ToCsv(MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(4, 8), std::vector<int32_t>{0, 2, 0}).value()) ==
      "0F0,0F1,0F2,0F3,0F4,0F5,0B0,0F6,0B1,0F7,0B2,0B3,0B4,0B5,0B6,0B7\n"
      "1F0,1F1,1F2,1F3,1F4,1B0,1F5,1B1,1F6,1B2,1F7,1B3,1B4,1B5,1B6,1B7\n"
      "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
      "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n");
}

TEST_CASE("geopipe adds the advances of all crossings downstream, up to all micro-batches") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(3, 4), std::vector<int32_t>{1, 1}).value()) ==
        "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"
        "1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n"
        "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  CHECK(MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(3, 4),
                     std::vector<int32_t>{2'000'000'000, 2'000'000'000})
            .value()
            .devices[0] == MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(3, 4)).value().devices[0]);
}

TEST_CASE("one device, one micro-batch") {
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(1, 1)).value()) == "0F0,0B0\n");
  CHECK(ToCsv(MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(1, 2), {}).value()) == "0F0,0B0,0F1,0B1\n");
}

// Forwards before the first backward, less the one that the steady state opens with.
int64_t WarmUp(const std::vector<Action>& actions) {
  const auto first_backward = std::find_if(actions.begin(), actions.end(),
                                           [](const Action& action) { return action.kind == ActionKind::kBackward; });
  return first_backward - actions.begin();
}

int64_t PeakInFlight(const std::vector<Action>& actions) {
  int64_t now = 0;
  int64_t peak = 0;
  for (const Action& action : actions) {
    now += action.kind == ActionKind::kForward ? 1 : -1;
    peak = std::max(peak, now);
  }
  return peak;
}

TEST_CASE("random shapes: valid, with the warm-up and the in-flight limit of the definition") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto devices = static_cast<int32_t>(Draw(random, 1, 10));
    const auto micro_batches = static_cast<int32_t>(Draw(random, 1, 30));
    const PipelineShape shape = PipelineShape::Linear(devices, micro_batches);
    std::vector<int32_t> delta_n;
    for (int32_t boundary = 0; boundary + 1 < devices; ++boundary) {
      delta_n.push_back(static_cast<int32_t>(Draw(random, 0, 1) * Draw(random, 0, 5)));
    }
    CAPTURE(round, devices, micro_batches, delta_n);
    const Schedule schedule = MakeSchedule(ScheduleKind::kGeoPipe, shape, delta_n).value();
    std::vector<int64_t> limits;
    for (int32_t p = 0; p < devices; ++p) {
      int64_t advance = 0;
      for (int32_t k = p; k + 1 < devices; ++k) {
        advance += delta_n[k];
      }
      const int64_t warm_up = std::min<int64_t>(micro_batches, devices - 1 - p + advance);
      limits.push_back(std::min<int64_t>(micro_batches, devices - p + advance));
      // The steady state opens with one more forward, unless none is left.
      REQUIRE(WarmUp(schedule.devices[p]) == std::min<int64_t>(micro_batches, warm_up + 1));
      REQUIRE(PeakInFlight(schedule.devices[p]) == limits.back());
    }
    REQUIRE(Validate(schedule, {limits}).ok());
    --limits[static_cast<size_t>(Draw(random, 0, devices - 1))];
    REQUIRE_FALSE(Validate(schedule, {limits}).ok());
    REQUIRE(Validate(MakeSchedule(ScheduleKind::kGpipe, shape).value()).ok());
    const std::vector<int32_t> none(delta_n.size(), 0);
    REQUIRE(MakeSchedule(ScheduleKind::kOneFOneB, shape).value() ==
            MakeSchedule(ScheduleKind::kGeoPipe, shape, none).value());
  }
}

TEST_CASE("generators refuse what they cannot schedule") {
  const auto message = [](ScheduleKind kind, const PipelineShape& shape, const std::vector<int32_t>& delta_n = {}) {
    return std::string(MakeSchedule(kind, shape, delta_n).status().message());
  };
  CHECK(message(ScheduleKind::kGpipe, PipelineShape::Linear(0, 4)) == "devices is 0: it must lie between 1 and 65536");
  CHECK(message(ScheduleKind::kGpipe, PipelineShape::Linear(-1, 4)) ==
        "devices is -1: it must lie between 1 and 65536");
  CHECK(message(ScheduleKind::kOneFOneB, PipelineShape::Linear(4, 0)) == "micro_batches is 0: it must be at least 1");
  CHECK(message(ScheduleKind::kGpipe, PipelineShape::Linear(60'000, 2'000'000'000)) ==
        "stages * micro_batches is 60000 * 2000000000: it must be at most 67108864");
  const PipelineShape interleaved{2, 4, 4, {0, 1, 0, 1}};
  CHECK(message(ScheduleKind::kOneFOneB, interleaved) ==
        "schedule 1f1b runs one stage per device: 4 stages on 2 devices given");
  const PipelineShape swapped{2, 2, 4, {1, 0}};
  CHECK(message(ScheduleKind::kGpipe, swapped) == "schedule gpipe runs stage 0 on device 0: placement[0] is 1");
  CHECK(message(ScheduleKind::kGpipe, {2, 2, 4, {0}}) ==
        "placement has 1 entries: it needs one for each of the 2 stages");
  CHECK(message(ScheduleKind::kGpipe, {2, 2, 4, {0, 2}}) == "placement[1] is 2: it must be a device from 0 to 1");
  const PipelineShape shape = PipelineShape::Linear(3, 4);
  CHECK(message(ScheduleKind::kAuto, shape) == "schedule auto is searched for, not made by rule");
  CHECK(message(ScheduleKind::kGeoPipe, shape, std::vector<int32_t>{1}) ==
        "schedule geopipe needs one delta_n per boundary: 1 given for 2 boundaries");
  CHECK(message(ScheduleKind::kGeoPipe, shape, std::vector<int32_t>{0, -2}) ==
        "delta_n of boundary 1 is -2: it must not be negative");
}

}  // namespace
}  // namespace geopipe
