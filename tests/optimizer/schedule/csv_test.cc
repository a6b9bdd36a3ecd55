#include "optimizer/schedule/csv.h"

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

// Reads a file without being told its shape: the schedule as CSV again, or the error.
std::string ReadAs(std::string_view csv) {
  const absl::StatusOr<GivenSchedule> read = ReadScheduleCsv(csv);
  return read.ok() ? ToCsv(read->schedule) : std::string(read.status().message());
}

TEST_CASE("a schedule as PyTorch writes it") {
  struct Row {
    std::string csv, read, notes;
  };
  const std::string whole = "0F0,0B0\n1F0,1B0\n";
  const std::string split = "0F0,0I0,0W0\n1F0,1I0,1W0\n";
  const std::vector<Row> rows{
      {"0F0,,0B0\r\n,1F0,1B0\r\n", whole, ""},
      {"0F0,None,0B0\nNone,1F0,1B0", whole, ""},
      {"0F0,nan,0B0\nnan,1F0,1B0", whole, ""},
      {"\xef\xbb\xbf\"0F0\", 0B0\n1F0,1B0", whole, ""},
      {"# 1F1B\n0F0,0B0\n  # the last\n1F0,1B0\n\n", whole, ""},
      {"0F0,0B0\r1F0,1B0\r", whole, ""},
      {"0FORWARD0,0FULL_BACKWARD0\n1F0,1BW0", whole, ""},
      {"0F0,0BACKWARD_INPUT0,0BACKWARD_WEIGHT0\n1F0,1I0,1W0", split, ""},
      {"0F0,0B0,0W0\n1F0,1B0,1W0", split, "2 B read as I, because W of the same micro-batch are there"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", whole, ""},
      {"0F0,0SEND_F0,,0RECV_B0,0B0\n1RECV_F0,,1F0,1B0,1SEND_B0", whole, ""},
      {"0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", whole,
       "SEND and RECV moved next to the actions that make and need their messages"},
      {"0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1F0,1B0,1RESHARD,1REDUCE_GRAD0", whole,
       "2 UNSHARD, 2 RESHARD, 2 REDUCE_GRAD passed over (zero_stage says when weights and gradients move)"},
      {"0F0,(0F1;0B0)OVERLAP_F_B,0B1", "0F0,0F1,0B0,0B1\n", "1 OVERLAP_F_B read as their actions in order"},
      {"0F0,( 0F1 ; 0I0; 0W0 )OVERLAP_F_B,0B1", "0F0,0F1,0I0,0W0,0B1\n",
       "1 OVERLAP_F_B read as their actions in order"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.csv);
    CHECK(ReadAs(row.csv) == row.read);
    const absl::StatusOr<GivenSchedule> read = ReadScheduleCsv(row.csv);
    CHECK((read.ok() ? NotesText(read->notes) : "") == row.notes);
  }
}

TEST_CASE("a file says its shape by its rows") {
  const absl::StatusOr<GivenSchedule> folded = ReadScheduleCsv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n\n");
  REQUIRE(folded.ok());
  CHECK(folded->schedule.shape == PipelineShape{2, 4, 1, {0, 1, 1, 0}});
  const absl::StatusOr<GivenSchedule> idle = ReadScheduleCsv("0F0,0B0\n\n1F0,1B0\n");
  REQUIRE(idle.ok());
  CHECK(idle->schedule.shape == PipelineShape{3, 2, 1, {0, 2}});
}

TEST_CASE("every schedule of the table reads back without being told its shape") {
  for (const ScheduleRow& row : kSchedules) {
    if (row.make == nullptr) {
      continue;
    }
    const PipelineShape shape = PipelineShape::Of(row.layout, 3, 7);
    const Schedule schedule = MakeSchedule(row.kind, shape, std::vector<int32_t>(shape.stages - 1, 1)).value();
    for (const std::string& csv : {ToCsv(schedule), ToCsv(Lower(schedule).value())}) {
      const absl::StatusOr<GivenSchedule> read = ReadScheduleCsv(csv);
      CAPTURE(row.name, csv, read.status().ToString());
      REQUIRE(read.ok());
      CHECK(read->schedule == schedule);
      CHECK(read->notes == CsvNotes{});
    }
  }
}

TEST_CASE("what a file must not say is refused by its cell") {
  const auto [csv, words] = GENERATE(table<std::string, std::string>({
      {"", "schedule CSV has no rows"},
      {",,\n\n", "schedule CSV has no rows"},
      {"# nothing\n", "schedule CSV has no rows"},
      {"0,1,2\n0F0,0B0", "row 1, cell 1: '0' is not an action"},
      {"0,1,2\n0F0,0B0", "leave out a header and a column of numbers or names"},
      {"Rank 0,0F0,0B0", "leave out a header and a column of numbers or names"},
      {"0F0;0B0", "cells are separated by commas"},
      {"0F0\t0B0", "cells are separated by commas"},
      {std::string("\xff\xfe", 2) + "0", "is UTF-16: save it as UTF-8"},
      {"0f0,0b0", "row 1, cell 1: '0f0' is not an action"},
      {"0F0,0BACKWARD0", "row 1, cell 2: '0BACKWARD0' is not an action"},
      {"0F0,00B0", "'00B0' is not an action"},
      {"0F0,-1B0", "'-1B0' is not an action"},
      {"0F0,0B", "'0B' is not an action"},
      {"0F0,UNSHARD,0B0", "'UNSHARD' is not an action"},
      {"0F0,0OVERLAP_F_B0,0B0", "an overlap names its actions, like (3F1;3B0)OVERLAP_F_B"},
      {"0F0,(0F1;0B0),0B1", "cell 2: '(0F1;0B0)' is not an overlap of two actions or more"},
      {"0F0,(0B0)OVERLAP_F_B", "is not an overlap of two actions or more"},
      {"0F0,(0F1;0B0", "is not an overlap of two actions or more"},
      {"0F0,(0F1;(0B0;0B1)OVERLAP_F_B)OVERLAP_F_B", "cell 2: "},
      {"0F0,(0F1;0SEND_F0)OVERLAP_F_B,0B0", "'0SEND_F0' in an overlap is not F, B, I or W"},
      {"0F0,(0F1;0UNSHARD)OVERLAP_F_B,0B0", "'0UNSHARD' is not an action"},
      {"0F0,0B0\n0F1,0B1", "row 2, cell 1: stage 0 is in row 1 too"},
      {"0F0,0B0\n2F0,2B0", "has stages up to 2, but no row runs stage 1"},
      {"0F0,0F1,0B0", "row 1, cell 4: device 0 position 3, end of the list: 0B1 never runs"},
      {"0F0,,0B0,0B0", "row 1, cell 4: device 0 position 2, 0B0: runs a second time"},
      {"0UNSHARD,0B0,0F0", "row 1, cell 2: device 0 position 0, 0B0: runs before its forward 0F0"},
      {"0F0,(0F1;0B1)OVERLAP_F_B,0B0", "row 1, cell 2: device 0 position 2, 0B1: backwards of a stage run in"},
      {"0F0,0F1,0F2000000000,0B0", "row 1, cell 3: 1 stages times 2000000001 micro-batches are more than"},
      {"2147483647F0", "more than"},
      {"99999999999F0", "is not an action"},
      {"0F0,0B0\n# a comment is a line of its own number\n1B0,1F0", "row 3, cell 1: device 1 position 0"},
  }));
  const std::string said = ReadAs(csv);
  CAPTURE(csv);
  CHECK_THAT(said, Catch::Contains(words));
}

TEST_CASE("a file for a case is held to the case's shape") {
  const PipelineShape shape = PipelineShape::Linear(2, 1);
  CHECK(ReadScheduleCsv("0F0,0B0\n1F0,1B0", shape).ok());
  CHECK_THAT(std::string(ReadScheduleCsv("0F0,0B0", shape).status().message()),
             Catch::Contains("has 1 rows: it needs 2"));
  CHECK_THAT(std::string(ReadScheduleCsv("0F0,0B0\n2F0,2B0", shape).status().message()),
             Catch::Contains("row 2, cell 1: device 1 position 0, 2F0: stage must lie between 0 and 1"));
}

}  // namespace
}  // namespace geopipe
