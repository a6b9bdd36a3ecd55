#include "coordinator/core/telemetry/clock_alignment.h"

#include <catch2/catch.hpp>
#include <vector>

#include "coordinator/core/telemetry/iteration_log.h"

namespace geopipe {
namespace {

void AddClock(v1::IterationReport& report, int32_t rank, int64_t offset_ns, int64_t round_trip_ns) {
  v1::PeerClock& clock = *report.add_clocks();
  clock.set_rank(rank);
  clock.set_offset_ns(offset_ns);
  clock.set_round_trip_ns(round_trip_ns);
}

void AddAction(v1::IterationReport& report, const std::string& action, int64_t start_ns, int64_t end_ns) {
  v1::ActionTiming& timing = *report.add_actions();
  timing.set_action(action);
  timing.set_start_ns(start_ns);
  timing.set_end_ns(end_ns);
}

TEST_CASE("offsets add up along the path with the shortest round trips, read from either end") {
  // Clocks: rank 1 is 1000 ahead of rank 0, rank 2 is 5000 behind, rank 3 is not known.
  std::vector<v1::IterationReport> reports(4);
  AddClock(reports[0], 1, 1010, 40);
  AddClock(reports[2], 1, 6000, 20);    // rank 2 says: rank 1 is 6000 ahead of me
  AddClock(reports[0], 2, -4000, 500);  // a worse look at rank 2
  const std::vector<RankClock> clocks = AlignClocks(reports);
  REQUIRE(clocks.size() == 4);
  CHECK(clocks[0].offset_ns == 0);
  CHECK(clocks[0].error_ns == 0);
  CHECK(clocks[1].offset_ns == 1010);
  CHECK(clocks[1].error_ns == 20);
  CHECK(clocks[2].offset_ns == 1010 - 6000);
  CHECK(clocks[2].error_ns == 30);
  CHECK(clocks[3].offset_ns == 0);
  CHECK(clocks[3].error_ns == -1);
}

TEST_CASE("a timeline is on rank 0's clock, from its first action") {
  std::vector<v1::IterationReport> reports(2);
  for (int32_t rank = 0; rank < 2; ++rank) {
    reports[rank].set_iteration(7);
    reports[rank].set_rank(rank);
    reports[rank].set_duration_ns(900 + rank);
  }
  reports[0].set_begin_ns(50'000);
  AddAction(reports[0], "0F0", 0, 100);
  AddClock(reports[0], 1, -20'000, 10);
  reports[1].set_begin_ns(30'130);  // 130 after rank 0, on a clock that is 20,000 behind
  AddAction(reports[1], "1RECV_F0", -30, -5);
  AddAction(reports[1], "1F0", 0, 100);
  const v1::IterationTimeline timeline = TimelineOf(reports);
  CHECK(timeline.iteration() == 7);
  CHECK(timeline.duration_ns() == 900);
  REQUIRE(timeline.ranks_size() == 2);
  CHECK(timeline.ranks(0).actions(0).start_ns() == 0);
  CHECK(timeline.ranks(1).actions(0).start_ns() == 100);
  CHECK(timeline.ranks(1).actions(1).start_ns() == 130);
  CHECK(timeline.ranks(1).actions(1).end_ns() == 230);
  CHECK(timeline.ranks(1).clock_error_ns() == 5);
}

TEST_CASE("the log keeps the latest timelines of iterations that all ranks reported with actions") {
  IterationLog log(2, 0, 100);
  const auto report = [](int32_t rank, int64_t iteration, bool actions) {
    v1::IterationReport message;
    message.set_rank(rank);
    message.set_iteration(iteration);
    message.set_duration_ns(10);
    if (actions) {
      AddAction(message, rank == 0 ? "0F0" : "1F0", 0, 5);
    }
    return message;
  };
  for (int64_t iteration = 0; iteration < 20; ++iteration) {
    log.OnReport(report(0, iteration, true));
    log.OnReport(report(1, iteration, iteration % 3 == 0));
  }
  REQUIRE(log.timelines().size() == IterationLog::kMaxTimelines);
  CHECK(log.timelines().front().iteration() == 6);
  CHECK(log.timelines().back().iteration() == 18);
  log.Forget();
  CHECK(log.timelines().empty());
}

}  // namespace
}  // namespace geopipe
