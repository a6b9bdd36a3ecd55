// All of the data is compared while a job trains on it.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

v1::WorkerReport DataCheckOf(const std::vector<uint32_t>& checksums, uint64_t epoch = 1) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  report.mutable_data_check()->set_data_bytes(95);
  report.mutable_data_check()->set_chunk_bytes(10);
  report.mutable_data_check()->mutable_checksums()->Assign(checksums.begin(), checksums.end());
  return report;
}

constexpr const char* kDifference =
    "north/n0/0 and west/n0/0 read different training data: bytes [20, 30) of the files of data.path, one after the "
    "other, are not the same; give both the same files";

TEST_CASE("a job whose ranks turn out to read different data fails, by workers and bytes") {
  for (const bool north_first : {false, true}) {
    Federation f;
    f.DriveTo(v1::JOB_STATE_RUNNING);
    f.IterateAll(0);
    const std::string first = north_first ? "north" : "west";
    f.Answer(first, DataCheckOf({1, 2}));
    f.Answer(north_first ? "west" : "north", DataCheckOf({1, 2, 3, 4}));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    f.Answer(first, DataCheckOf({1, 2, 9}));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.CauseOf("tiny") == kDifference);
    CHECK(f.broken == "");
  }
}

TEST_CASE("a job whose ranks read the same data completes, however often they say so") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    for (const std::string site : {"north", "west", "north"}) {
      f.Answer(site, DataCheckOf({1, 2, 3}));
    }
    f.IterateAll(iteration);
  }
  f.FinishAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
}

TEST_CASE("what an earlier epoch's workers say of the data counts, and so does what a paused job's say") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Answer("north", DataCheckOf({1, 2, 3}));
  f.Step(PauseJob{f.next_call++, "tiny"});
  EndAll(f, 1);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  f.Answer("west", DataCheckOf({1, 2, 8}));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") == kDifference);
}

TEST_CASE("a coordinator that was restarted hears of the data again, and finds the difference") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Answer("north", DataCheckOf({1, 2, 3}));
  before.RunFor(kSecond);  // acknowledged
  Federation f(NextLife(), before.Stored());
  ReturnAll(f, StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
  f.Answer("west", DataCheckOf({1, 2, 9, 4, 5, 6, 7, 8, 9, 10}));  // its last
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.Answer("north", DataCheckOf({1, 2, 3}));  // within a minute
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK(f.CauseOf("tiny") == kDifference);
}

TEST_CASE("what a worker of another run says of its data counts for nothing") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Answer("north", DataCheckOf({1, 2, 3}));
  AgentMessage stale{f.sessions["west"], {}};
  stale.message.set_incarnation(1);
  v1::RelayedReport& relayed = *f.AddReport(stale).mutable_worker();
  *relayed.mutable_worker() = MakeWorkerId(DeviceAt("west"), "tiny", 1);
  *relayed.mutable_report() = DataCheckOf({1, 2, 9});
  f.Step(stale);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace geopipe
