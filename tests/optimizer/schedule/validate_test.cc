#include "optimizer/schedule/validate.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

std::string Verdict(std::string_view csv, const PipelineShape& shape, const ActivationLimits& limits = {}) {
  return Validate(ParseCsv(csv, shape).value(), limits).ToString();
}

const PipelineShape kTwo = PipelineShape::Linear(2, 2);

TEST_CASE("a fault is one sentence and the grid with the cell marked") {
  CHECK(Verdict("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n", kTwo) ==
        "INVALID_ARGUMENT: schedule, device 1 position 2, 1B1: runs before its forward 1F1\n"
        "device   0 | 0F0   0B0   0F1   0B1\n"
        "device   1 | 1F0   1B0   >1B1< 1F1\n");
}

TEST_CASE("what is missing is marked at the end of its list") {
  CHECK(Verdict("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", kTwo) ==
        "INVALID_ARGUMENT: schedule, device 0 position 3, end of the list: 0B1 never runs\n"
        "device   0 | 0F0 0F1 0B0 ><\n"
        "device   1 | 1F0 1B0 1F1 1B1\n");
}

TEST_CASE("a deadlock shows its cycle") {
  // Stage 0 wants the gradient of micro-batch 0 before it sends the activation of micro-batch 1, and stage 1 the other
  // way round.
  CHECK(
      Verdict("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", kTwo) ==
      "INVALID_ARGUMENT: schedule, device 0 position 1, 0B0: deadlock: these actions wait for each other in a cycle: "
      "0B0 (device 0 position 1) waits for 1B0 (device 1 position 2), which stands behind 1F1; 1F1 (device 1 position "
      "1) waits for 0F1 (device 0 position 2), which stands behind 0B0; move one that is waited for ahead of what it "
      "stands behind\n"
      "device   0 | 0F0   >0B0< 0F1   0B1\n"
      "device   1 | 1F0   >1F1< 1B0   1B1\n");
}

TEST_CASE("every rule has its sentence") {
  const PipelineShape one = PipelineShape::Linear(1, 2);
  const std::vector<std::pair<std::string, std::string>> table = {
      {"0F0,0F0,0B0,0F1,0B1\n", "position 1, 0F0: runs a second time"},
      {"0F0,0B0,0B0,0F1,0B1\n", "position 2, 0B0: runs a second time"},
      {"0F0,0F1,0B1,0B0\n", "position 2, 0B1: backwards of a stage run in micro-batch order: 0 is next"},
      {"0F0,0F1,0I0,0I1,0W1,0W0\n", "position 4, 0W1: weight gradients of a stage accumulate in micro-batch order: 0"},
      {"0F0,0F1,0I0,0B1,0W0\n", "position 3, 0B1: weight gradients of a stage accumulate in micro-batch order: 0"},
      {"0F0,0W0,0I0,0F1,0B1\n", "position 1, 0W0: runs before its input gradient 0I0"},
      {"0F0,0I0,0B0,0F1,0B1\n", "position 2, 0B0: micro-batch 0 has both a full backward and a split one"},
      {"0F0,0B0,0W0,0F1,0B1\n", "position 2, 0W0: micro-batch 0 has both a full backward and a split one"},
      {"0F0,0B0\n", "position 2, end of the list: 0F1 never runs"},
      {"0F0,0I0,0F1,0I1,0W0\n", "position 5, end of the list: 0W1 never runs"},
      {"0F0,0B0,0F2,0B2\n", "position 2, 0F2: micro-batch must lie between 0 and 1"},
      {"0F0,0B0,1F1\n", "position 2, 1F1: stage must lie between 0 and 0"},
      {"0F0,0SEND_F0,0B0,0F1,0B1\n", "position 1, 0SEND_F0: 0B0 belongs here: a RECV stands right before"},
      {"0F0,0B0,0F1,0B1,0SEND_F0\n", "position 4, 0SEND_F0: no action of this device needs it here"},
  };
  for (const auto& [csv, sentence] : table) {
    CAPTURE(csv, sentence);
    CHECK_THAT(Verdict(csv, one), Catch::Contains("schedule, device 0 " + sentence));
  }
  CHECK_THAT(Verdict("1F0,0B0\n1F0\n", kTwo),
             Catch::Contains("device 0 position 0, 1F0: stage 1 is placed on device 1"));
  CHECK(Validate({kTwo, {{}}}).message() == "schedule has 1 lists of actions: it needs 2, one per device");
}

TEST_CASE("full and split backwards may alternate between micro-batches") {
  const PipelineShape one = PipelineShape::Linear(1, 3);
  CHECK(Verdict("0F0,0F1,0F2,0I0,0W0,0B1,0I2,0W2\n", one) == "OK");
}

TEST_CASE("a lowered schedule must be the lowering of its compute actions") {
  const Schedule lowered = Lower(MakeSchedule(ScheduleKind::kOneFOneB, kTwo).value()).value();
  REQUIRE(ToCsv(lowered) ==
          "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
          "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  REQUIRE(Validate(lowered).ok());
  for (size_t device = 0; device < 2; ++device) {
    for (size_t position = 0; position < lowered.devices[device].size(); ++position) {
      Schedule without = lowered;
      without.devices[device].erase(without.devices[device].begin() + static_cast<int64_t>(position));
      Schedule twice = lowered;
      twice.devices[device].insert(twice.devices[device].begin() + static_cast<int64_t>(position),
                                   lowered.devices[device][position]);
      CAPTURE(device, position);
      CHECK_FALSE(Validate(without).ok());
      CHECK_FALSE(Validate(twice).ok());
      if (position > 0) {
        Schedule swapped = lowered;
        std::swap(swapped.devices[device][position - 1], swapped.devices[device][position]);
        CHECK_FALSE(Validate(swapped).ok());
      }
    }
  }
  CHECK_THAT(Verdict("0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B0,0RECV_B1,0B1\n"
                     "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
                     kTwo),
             Catch::Contains("device 0 position 4, 0B0: 0RECV_B0 belongs here"));
}

TEST_CASE("in-flight limits count micro-batches from F to B, or to I") {
  const PipelineShape one = PipelineShape::Linear(1, 2);
  const std::vector<int64_t> limit = {1};
  CHECK(Verdict("0F0,0I0,0F1,0W0,0I1,0W1\n", one, {limit}) == "OK");
  CHECK_THAT(Verdict("0F0,0F1,0B0,0B1\n", one, {limit}),
             Catch::Contains("device 0 position 1, 0F1: 2 micro-batches in flight, and memory allows 1"));
}

TEST_CASE("a large grid shows the window around the fault") {
  Schedule schedule = MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(100, 500)).value();
  std::swap(schedule.devices[80][600], schedule.devices[80][601]);
  const std::string text = Validate(schedule).ToString();
  CHECK_THAT(text, Catch::Contains("device 80 position 600, 80B101: backwards of a stage run in micro-batch order"));
  CHECK_THAT(text, Catch::Contains("(devices 36 to 99 of 100, positions 472 to 727 of 1000)"));
  CHECK_THAT(text, Catch::Contains(">80B101<"));
}

}  // namespace
}  // namespace geopipe
