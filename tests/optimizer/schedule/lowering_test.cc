#include "optimizer/schedule/lowering.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

TEST_CASE("sends follow the action that makes the message, receives precede the one that needs it") {
  const Schedule schedule = MakeSchedule(ScheduleKind::kOneFOneB, PipelineShape::Linear(3, 2)).value();
  CHECK(ToCsv(Lower(schedule).value()) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n"
        "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1\n");
}

TEST_CASE("of a split backward the input gradient travels, the weight gradient stays") {
  const PipelineShape shape = PipelineShape::Linear(2, 1);
  const Schedule schedule = ParseCsv("0F0,0I0,0W0\n1F0,1I0,1W0\n", shape).value();
  CHECK(ToCsv(Lower(schedule).value()) ==
        "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n"
        "1RECV_F0,1F0,1I0,1SEND_B0,1W0\n");
}

TEST_CASE("stages on one device exchange nothing") {
  // A "V": stages 0 and 3 on device 0, stages 1 and 2 on device 1.
  const PipelineShape shape{2, 4, 1, {0, 1, 1, 0}};
  const Schedule schedule = ParseCsv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", shape).value();
  CHECK(ToCsv(Lower(schedule).value()) ==
        "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n");
}

TEST_CASE("a lowered schedule is not lowered again") {
  const Schedule lowered = Lower(MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(2, 1)).value()).value();
  CHECK(Lower(lowered).status().message() ==
        "schedule is already lowered: device 0 position 1 is 0SEND_F0; drop its communication first");
}

}  // namespace
}  // namespace geopipe
