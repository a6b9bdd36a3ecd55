#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("CSV reads back as itself, compute-only and lowered") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const PipelineShape shape = RandomShape(random);
    const Schedule schedule = RandomSchedule(random, shape, true);
    CAPTURE(round, ToCsv(schedule));
    REQUIRE(ParseCsv(ToCsv(schedule), shape).value() == schedule);
    const Schedule lowered = Lower(schedule).value();
    REQUIRE(ParseCsv(ToCsv(lowered), shape).value() == lowered);
    REQUIRE(DropCommunication(lowered) == schedule);
  }
}

TEST_CASE("CSV may have idle cells, blanks, CRLF, no final newline and blank rows at the end") {
  const PipelineShape shape = PipelineShape::Linear(2, 1);
  const Schedule expected = MakeSchedule(ScheduleKind::kGpipe, shape).value();
  CHECK(ParseCsv("0F0,,0B0\n,1F0,1B0,\n", shape).value() == expected);
  CHECK(ParseCsv(" 0F0 ,\t0B0\r\n1F0,1B0\r\n", shape).value() == expected);
  CHECK(ParseCsv("0F0,0B0\n1F0,1B0", shape).value() == expected);
  CHECK(ParseCsv("0F0,0B0\n1F0,1B0\n\n \n", shape).value() == expected);
}

TEST_CASE("a device without stages has an empty row") {
  const PipelineShape shape{3, 2, 1, {0, 2}};
  const Schedule schedule = ParseCsv("0F0,0B0\n\n1F0,1B0\n", shape).value();
  CHECK(schedule.devices[1].empty());
  CHECK(ToCsv(schedule) == "0F0,0B0\n\n1F0,1B0\n");
}

TEST_CASE("CSV errors name row and cell") {
  const PipelineShape shape = PipelineShape::Linear(2, 1);
  const auto message = [&shape](std::string_view csv) { return ParseCsv(csv, shape).status().ToString(); };
  CHECK(message("0F0,0B0\n1F0,1Q0\n").find("schedule CSV, row 2, cell 2: '1Q0' is not an action") != std::string::npos);
  CHECK(message("0F0,0B0\n") == "INVALID_ARGUMENT: schedule CSV has 1 rows: it needs 2, one per device");
  CHECK(message("0F0\n1F0\n2F0\n") == "INVALID_ARGUMENT: schedule CSV, row 3: only 2 rows expected, one per device");
  CHECK(message("") == "INVALID_ARGUMENT: schedule CSV has 0 rows: it needs 2, one per device");
  std::string flood;
  for (int i = 0; i < 100; ++i) {
    flood += "0F0,";
  }
  CHECK(message(flood).find("row 1, cell 19: more actions than any schedule of this shape has") != std::string::npos);
  CHECK(ParseCsv("", {2, 2, 0, {0, 1}}).status().message() == "micro_batches is 0: it must be at least 1");
}

}  // namespace
}  // namespace geopipe
