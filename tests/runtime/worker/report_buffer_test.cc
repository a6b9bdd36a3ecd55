#include "runtime/worker/report_buffer.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

v1::WorkerReport Iteration(int64_t number, int actions) {
  v1::WorkerReport report;
  report.mutable_iteration()->set_iteration(number);
  for (int i = 0; i < actions; ++i) {
    report.mutable_iteration()->add_actions()->set_action(std::string(90, 'F'));
  }
  return report;
}

v1::WorkerReport Committed() {
  v1::WorkerReport report;
  report.mutable_committed()->set_rank(1);
  return report;
}

std::vector<v1::WorkerReport> All(ReportBuffer& buffer) {
  std::vector<v1::WorkerReport> all;
  while (const v1::WorkerReport* report = buffer.Next()) {
    all.push_back(*report);
  }
  return all;
}

TEST_CASE("reports are numbered, handed out once, and again on a new path until they are taken") {
  ReportBuffer buffer(1 << 20);
  CHECK(buffer.Next() == nullptr);
  buffer.Add(Committed());
  buffer.Add(Iteration(0, 1));
  CHECK(All(buffer).size() == 2);
  CHECK(buffer.all_handed_out());
  buffer.Add(Iteration(1, 1));
  CHECK_FALSE(buffer.all_handed_out());
  CHECK(buffer.Next()->sequence() == 3);
  buffer.Taken(1);
  buffer.Rewind();
  const std::vector<v1::WorkerReport> again = All(buffer);
  REQUIRE(again.size() == 2);
  CHECK(again[0].sequence() == 2);
  CHECK(again[1].iteration().iteration() == 1);
  buffer.Taken(7);
  CHECK(buffer.empty());
  CHECK(buffer.bytes() == 0);
  buffer.Taken(3);  // an old word
  buffer.Add(Committed());
  CHECK(buffer.Next()->sequence() == 4);
}

TEST_CASE("when there are too many bytes the oldest actions go, then the oldest iterations, and nothing else") {
  ReportBuffer buffer(5'000);
  buffer.Add(Committed());
  for (int64_t iteration = 0; iteration < 10; ++iteration) {
    buffer.Add(Iteration(iteration, 10));
    CHECK(buffer.bytes() <= 5'000);
  }
  std::vector<v1::WorkerReport> all = All(buffer);
  REQUIRE(all.size() == 11);
  for (int64_t iteration = 0; iteration < 10; ++iteration) {
    CHECK(all[iteration + 1].iteration().actions_size() == (iteration < 5 ? 0 : 10));
  }
  ReportBuffer tight(100);
  tight.Add(Committed());
  for (int64_t iteration = 0; iteration < 50; ++iteration) {
    tight.Add(Iteration(iteration, 0));
  }
  for (int i = 0; i < 20; ++i) {
    tight.Add(Committed());
  }
  all = All(tight);
  REQUIRE(all.size() == 21);  // too many, but none that may be dropped
  CHECK(all[0].sequence() == 1);
  CHECK(all[1].sequence() == 52);
}

}  // namespace
}  // namespace geopipe
