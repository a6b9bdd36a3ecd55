#include "agent/report_queue.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/agent/agent_harness.h"

namespace geopipe::agent {
namespace {

v1::NodeReport IterationReport(uint64_t sequence, int64_t iteration, int actions) {
  v1::NodeReport report;
  *report.mutable_worker()->mutable_worker() = TestWorker(0);
  report.mutable_worker()->mutable_report()->set_sequence(sequence);
  report.mutable_worker()->mutable_report()->mutable_iteration()->set_iteration(iteration);
  for (int i = 0; i < actions; ++i) {
    report.mutable_worker()->mutable_report()->mutable_iteration()->add_actions()->set_action("0F12");
  }
  return report;
}

v1::NodeReport ExitReport() {
  v1::NodeReport report;
  *report.mutable_exit()->mutable_worker() = TestWorker(0);
  report.mutable_exit()->set_pid(100);
  return report;
}

TEST_CASE("a full queue gives up actions first, then what has no number, and nothing else") {
  ReportQueue queue(5'000);
  for (int64_t i = 0; i < 10; ++i) {
    queue.Push(IterationReport(static_cast<uint64_t>(i) + 1, i, 100));
  }
  CHECK(queue.dropped() == 0);
  const int64_t stripped = queue.stripped();
  CHECK(stripped > 0);
  CHECK_FALSE(queue.full());
  const v1::NodeReports message = *queue.Take();
  REQUIRE(message.reports_size() == 10);
  for (int i = 0; i < 10; ++i) {  // the oldest have lost theirs
    CHECK(message.reports(i).worker().report().sequence() == static_cast<uint64_t>(i) + 1);
    CHECK((message.reports(i).worker().report().iteration().actions_size() == 0) == (i < stripped));
  }

  queue.Push(IterationReport(0, 100, 0));
  queue.Push(ExitReport());
  uint64_t sequence = 11;
  while (!queue.full()) {
    queue.Push(IterationReport(sequence++, 0, 0));
  }
  CHECK(queue.dropped() == 1);
  const size_t waiting = queue.waiting();
  queue.Push(ExitReport());
  queue.Push(IterationReport(sequence, 0, 0));
  CHECK(queue.waiting() == waiting + 2);
  CHECK(queue.dropped() == 1);
  CHECK(queue.full());
  uint64_t taken = 0;
  queue.Acknowledge(10, [&](const v1::NodeReport& report) { CHECK(report.worker().report().sequence() == ++taken); });
  CHECK(taken == 10);
  CHECK_FALSE(queue.full());
}

TEST_CASE("reports without a number are dropped oldest first, iterations before others") {
  ReportQueue queue(4'000);
  v1::NodeReport prepared;
  *prepared.mutable_worker()->mutable_worker() = TestWorker(0);
  prepared.mutable_worker()->mutable_report()->mutable_prepared();
  queue.Push(prepared);
  for (int64_t i = 0; i < 100; ++i) {
    queue.Push(IterationReport(0, i, 0));
  }
  CHECK_FALSE(queue.full());
  const v1::NodeReports message = *queue.Take();
  CHECK(message.reports(0).worker().report().has_prepared());
  const int last = message.reports_size() - 1;
  REQUIRE(last > 1);
  for (int i = 1; i <= last; ++i) {
    CHECK(message.reports(i).worker().report().iteration().iteration() == 99 - last + i);
  }
  CHECK(queue.dropped() == 100 - last);
}

TEST_CASE("of what the check of a worker's data has found only the latest waits") {
  ReportQueue queue(5'000);
  const auto data_check = [](int32_t device, int checksums) {
    v1::NodeReport report;
    *report.mutable_worker()->mutable_worker() = TestWorker(device);
    v1::DataCheckReport& check = *report.mutable_worker()->mutable_report()->mutable_data_check();
    check.mutable_checksums()->Resize(checksums, 7);
    return report;
  };
  queue.Push(IterationReport(1, 0, 0));
  queue.Push(data_check(0, 1));
  queue.Push(data_check(1, 2));
  queue.Push(data_check(0, 3));
  const v1::NodeReports message = *queue.Take();
  REQUIRE(message.reports_size() == 3);
  CHECK(message.reports(0).worker().report().has_iteration());
  CHECK(message.reports(1).worker().report().data_check().checksums_size() == 2);
  CHECK(message.reports(2).worker().report().data_check().checksums_size() == 3);
  CHECK(queue.dropped() == 0);
}

}  // namespace
}  // namespace geopipe::agent
