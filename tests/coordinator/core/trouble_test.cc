// Trouble of a node is not the job's: what cannot be started or read there is tried again, and left after the grace.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/version.h"
#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/moves.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int32_t kKillSignal = 9;
const std::string kNoFork = "cannot start geopipe-worker: Resource temporarily unavailable";

std::vector<v1::StartWorkers> Ordered(const Federation& f) {
  std::vector<v1::StartWorkers> started;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_start_workers()) {
      started.push_back(send.message.start_workers());
    }
  }
  return started;
}

// Runs until a worker is ordered, and returns how long that took; at most `limit_ns`.
int64_t AwaitStart(Federation& f, int64_t limit_ns) {
  int64_t waited_ns = 0;
  while (Ordered(f).empty() && waited_ns < limit_ns) {
    f.RunFor(kSecond / 10);
    waited_ns += kSecond / 10;
  }
  return waited_ns;
}

v1::NodeStatus StatusOf(Federation& f, const std::string& site) {
  f.Step(ListSites{f.next_call++});
  const auto sites = std::get<v1::ListSitesResponse>(*f.Last<ReplyToCall>().at(0).reply);
  for (const v1::SiteStatus& each : sites.sites()) {
    if (each.name() == site) {
      return each.nodes(0);
    }
  }
  return {};
}

void EndOthers(Federation& f, uint64_t epoch = 1, int64_t next = 2) {
  f.Answer("north", EndedReportOf(0, epoch, next));
  f.Answer("east", EndedReportOf(1, epoch, next));
}

// A worker's failure by its node's trouble, reported in the epoch.
v1::WorkerReport NodeFailure(uint64_t epoch, absl::StatusCode code, const std::string& message) {
  v1::WorkerReport report = FailureReportOf(code, message);
  report.set_epoch(epoch);
  report.mutable_failure()->set_of_node(true);
  return report;
}

// The job runs, with two of its iterations told; the worker of west is killed, and cannot be started again.
void RunAndFailStarts(Federation& f, int64_t for_ns) {
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.IterateAll(1);
  f.Exit(DeviceAt("west"), kKillSignal);
  REQUIRE(Ordered(f).size() == 1);
  CHECK(Ordered(f)[0].run_incarnation() == Federation::kRun);
  EndOthers(f);
  for (int64_t passed_ns = 0; passed_ns < for_ns;) {
    f.FailStart(DeviceAt("west"), kNoFork);
    if (f.StateOf("tiny") == v1::JOB_STATE_FAILED) {
      return;
    }
    const int64_t waited_ns = AwaitStart(f, 20 * kSecond);
    CHECK(waited_ns <= 10 * kSecond);
    passed_ns += waited_ns;
  }
}

TEST_CASE("trouble of seconds is over within three seconds after it, and longer trouble within ten") {
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.IterateAll(1);
  f.Exit(DeviceAt("west"), kKillSignal);
  EndOthers(f);
  int64_t longest_ns = 0;
  for (int64_t passed_ns = 0; passed_ns < 60 * kSecond;) {
    f.FailStart(DeviceAt("west"), kNoFork);
    const int64_t waited_ns = AwaitStart(f, 20 * kSecond);
    CHECK(waited_ns <= (passed_ns < 12 * kSecond ? 3 : 10) * kSecond);
    longest_ns = std::max(longest_ns, waited_ns);
    passed_ns += waited_ns;
  }
  CHECK(longest_ns > 5 * kSecond);
}

TEST_CASE("a worker that cannot be started for a minute costs the job that minute, and counts as no loss") {
  Federation f(Federation::RecoveringOptions());
  RunAndFailStarts(f, 60 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.FailStart(DeviceAt("west"), kNoFork);
  CHECK_THAT(f.CauseOf("tiny"),
             Catch::StartsWith("its node is unfit, and it is tried again every 10.0 s: worker west/n0"));
  CHECK(StatusOf(f, "west").trouble() == "worker west/n0/0 (site west) cannot be started: " + kNoFork);
  CHECK(StatusOf(f, "west").trouble_ns() >= 50 * kSecond);
  CHECK(StatusOf(f, "north").trouble().empty());
  v1::WorkerReport hello = HelloReport();
  hello.mutable_hello()->mutable_status()->set_phase(v1::WORKER_PHASE_IDLE);
  AddState(hello.mutable_hello()->mutable_status()->mutable_states(), 2, 1);
  AwaitStart(f, 20 * kSecond);
  f.Answer("west", hello);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.PrepareAll();
  f.CommitAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.DetailOf("tiny").epochs(1).first_iteration() == 2);
  CHECK(StatusOf(f, "west").trouble().empty());
  f.Exit(DeviceAt("west"), kKillSignal);  // the second loss of this hour, not the twelfth
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.broken == "");
}

TEST_CASE("another life of the coordinator does not count starts that failed, either") {
  Federation f(Federation::RecoveringOptions());
  RunAndFailStarts(f, 60 * kSecond);
  const v1::JobDetail before = f.DetailOf("tiny");
  Federation next(NextLife(Federation::RecoveringOptions()), f.Stored());
  for (const std::string site : {"north", "east"}) {
    next.Register(site, 1, {f.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 1, 2)});
  }
  next.Register("west", 1);
  next.RunFor(60 * kSecond);
  CHECK(next.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(next.DetailOf("tiny").recoveries(0).workers_size() >= before.recoveries(0).workers_size());
  CHECK(next.broken == "");
}

TEST_CASE("a job fails only when no node has been fit for it for a quarter of an hour") {
  Federation f(Federation::RecoveringOptions());
  RunAndFailStarts(f, 1000 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("for 90") && Catch::Contains("no node has been fit for it; last: ") &&
                                    Catch::EndsWith(kNoFork));
  CHECK(f.broken == "");
}

TEST_CASE("a node on which nothing can be started is left after the grace, as a lost one is") {
  Federation f = Made();
  RunSaved(f);
  f.Exit(DeviceAt("west"), kKillSignal);
  EndOthers(f);
  for (int tries = 0; tries < 10 && f.StateOf("tiny") == v1::JOB_STATE_RECOVERING; ++tries) {
    f.FailStart(DeviceAt("west"), kNoFork);
    AwaitStart(f, 12 * kSecond);
  }
  f.sites = {"north", "east"};
  PlanAgain(f);
  const v1::JobDetail detail = f.DetailOf("tiny");
  const std::string& cause = detail.transitions(detail.transitions_size() - 4).cause();
  CHECK(cause == "node west/n0 has been unfit for 10.0 s: worker west/n0/0 (site west) cannot be started: " + kNoFork +
                     "; the job goes on at north, east");
  CHECK(f.broken == "");
}

// The hello of a worker that holds the state before iteration 2.
v1::WorkerReport HelloOf(const std::string& version, uint32_t wire_version) {
  v1::WorkerReport report = HelloReport();
  v1::WorkerHello& hello = *report.mutable_hello();
  hello.set_version(version);
  hello.set_wire_version(wire_version);
  hello.mutable_status()->set_phase(v1::WORKER_PHASE_IDLE);
  AddState(hello.mutable_status()->mutable_states(), 2, 1);
  return report;
}

std::string MisfitSentence(const std::string& version, uint32_t wire_version) {
  return fmt::format(
      "worker west/n0/0 (site west) is version {} (wire version {}) and the coordinator is version 1.2.3 (wire version "
      "{}), which do not work together; install the same version on both, and where the job began with another one "
      "apply it again with --resume",
      version, wire_version, kWireVersion);
}

TEST_CASE("a worker is taken whose wire version the coordinator speaks, whatever its product version") {
  Federation f(Federation::RecoveringOptions());
  RunAndFailStarts(f, 0);
  f.Answer("west", HelloOf(GENERATE("1.2.2", "1.3.0"), kWireVersion));
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(StatusOf(f, "west").trouble().empty());
  CHECK(f.broken == "");
}

TEST_CASE(
    "a worker that does not fit is its node's trouble and not the job's, and costs the time until one that fits") {
  Federation f(Federation::RecoveringOptions());
  const auto [version, wire_version] = GENERATE(table<std::string, uint32_t>(
      {{"1.3.0", kWireVersion + 1}, {"1.2.3", kOldestWireVersion + kWireVersion + 1}, {"1.2.2", 0}}));
  RunAndFailStarts(f, 0);
  for (int64_t passed_ns = 0; passed_ns < 60 * kSecond;) {
    f.Answer("west", HelloOf(version, wire_version));
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    CHECK(f.Stops() == 1);
    CHECK(StatusOf(f, "west").trouble() == MisfitSentence(version, wire_version));
    f.Answer("west", HelloOf(version, wire_version));  // to its next agent
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    f.Exit(DeviceAt("west"), 0, 0);
    const int64_t waited_ns = AwaitStart(f, 20 * kSecond);
    CHECK(waited_ns <= 10 * kSecond);
    passed_ns += waited_ns;
  }
  f.Answer("west", HelloOf("1.2.3", 0));
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  f.PrepareAll();
  f.CommitAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(StatusOf(f, "west").trouble().empty());
  f.Exit(DeviceAt("west"), kKillSignal);  // the second loss of this hour
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.broken == "");
}

TEST_CASE("a node whose workers do not fit is left after the grace") {
  Federation f = Made();
  RunSaved(f);
  f.Exit(DeviceAt("west"), kKillSignal);
  EndOthers(f);
  for (int tries = 0; tries < 10 && f.StateOf("tiny") == v1::JOB_STATE_RECOVERING; ++tries) {
    f.Answer("west", HelloOf("1.3.0", kWireVersion + 1));
    AwaitStart(f, 12 * kSecond);
  }
  f.sites = {"north", "east"};
  PlanAgain(f);
  const v1::JobDetail detail = f.DetailOf("tiny");
  CHECK(detail.transitions(detail.transitions_size() - 4).cause() ==
        "node west/n0 has been unfit for 10.0 s: " + MisfitSentence("1.3.0", kWireVersion + 1) +
            "; the job goes on at north, east");
  CHECK(f.broken == "");
}

TEST_CASE("a new job whose worker does not fit begins again, with another node where there is one") {
  Federation f(Federation::RecoveringOptions());
  const bool has_other = GENERATE(false, true);
  if (has_other) {
    f.Register("west/n1");
  }
  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.Answer("west", HelloOf("1.3.0", kWireVersion + 1));
  f.RunFor(2 * kSecond);
  CHECK(f.StateOf("tiny") == (has_other ? v1::JOB_STATE_PROFILING : v1::JOB_STATE_PENDING));
  CHECK((f.IdOf({"west", "n1", 0}).incarnation() > 0) == has_other);
  if (!has_other) {
    CHECK_THAT(f.CauseOf("tiny"),
               Catch::EndsWith("; node west/n0 is unfit: " + MisfitSentence("1.3.0", kWireVersion + 1)));
    f.Exit(DeviceAt("west"), 0, 0);
    f.RunFor(10 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a new job waits for a node that is unfit and says so, and uses another that is there at once") {
  Federation f(Federation::RecoveringOptions());
  const bool has_other = GENERATE(false, true);
  if (has_other) {
    f.Register("west/n1");
  }
  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.FailStart(DeviceAt("west"), kNoFork);
  if (has_other) {
    f.RunFor(2 * kSecond);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
    CHECK(f.IdOf({"west", "n1", 0}).incarnation() > 0);
  } else {
    f.RunFor(2 * kSecond);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
    CHECK_THAT(f.CauseOf("tiny"), Catch::Contains("; node west/n0 is unfit: worker west/n0/0 (site west) cannot be") &&
                                      Catch::EndsWith(kNoFork));
    f.RunFor(10 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);  // tried again
    f.HelloAll();
    f.ProfileAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
    CHECK(StatusOf(f, "west").trouble().empty());
  }
  CHECK(f.broken == "");
}

TEST_CASE("a file that cannot be opened ends a job that has never trained, and costs one that has a while") {
  Federation f(Federation::RecoveringOptions());
  const std::string stale = "/data/tokens.bin: cannot be opened: Stale file handle";
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  if (GENERATE(false, true)) {
    f.Answer("west", NodeFailure(1, absl::StatusCode::kFailedPrecondition, stale));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK_THAT(f.CauseOf("tiny"), Catch::EndsWith(stale));
    return;
  }
  f.PrepareAll();
  f.CommitAll();
  f.IterateAll(0);
  f.IterateAll(1);
  f.Exit(DeviceAt("west"), kKillSignal);
  EndOthers(f);
  uint64_t epoch = 1;
  for (int64_t passed_ns = 0; passed_ns < 60 * kSecond;) {
    v1::WorkerReport hello = HelloReport();
    hello.mutable_hello()->mutable_status()->set_phase(v1::WORKER_PHASE_IDLE);
    AddState(hello.mutable_hello()->mutable_status()->mutable_states(), 2, 1);
    f.Answer("west", hello);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    f.Answer("west", NodeFailure(++epoch, absl::StatusCode::kFailedPrecondition, stale));
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    f.Exit(DeviceAt("west"), 0, 1);
    EndOthers(f, epoch);
    passed_ns += AwaitStart(f, 20 * kSecond);
  }
  CHECK_THAT(StatusOf(f, "west").trouble(), Catch::EndsWith(stale));
  CHECK(f.broken == "");
}

// The job has checkpoints of iterations 1 and 2, with copies, and the worker of north is killed.
Federation NorthLost() {
  Federation f = Made();
  f.job.grace_ns = 3600 * kSecond;
  RunSaved(f);
  Save(f, 1, 2);
  CopyAll(f, 1, 2);
  f.Exit(DeviceAt("north"), kKillSignal);
  return f;
}

// The iteration that the latest epoch begins with.
int64_t Tried(Federation& f) { return f.DetailOf("tiny").epochs().rbegin()->first_iteration(); }

// A rank of the epoch cannot read the checkpoint before the iteration, by its node's trouble.
void FailToReadThere(Federation& f, uint64_t epoch, int64_t iteration, absl::StatusCode code) {
  v1::WorkerReport report = NodeFailure(epoch, code, "a file cannot be read: Input/output error");
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& each : detail.checkpoints()) {
    if (each.identity().iteration() == iteration) {
      *report.mutable_failure()->mutable_unreadable() = each.identity();
    }
  }
  f.Answer("north", report);
}

// Another worker of north takes the place of the lost one, and has no state; the others rest.
void StartNorthAgain(Federation& f, uint64_t epoch) {
  AwaitStart(f, 20 * kSecond);
  f.Answer("north", HelloReport());
  f.Answer("east", EndedReportOf(1, epoch, 2));
  f.Answer("west", EndedReportOf(2, epoch, 2));
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

// A rank cannot get a file of the checkpoint from another node.
v1::WorkerReport CutOffFrom(Federation& f, uint64_t epoch, int64_t iteration) {
  v1::WorkerReport report = FailureReportOf(absl::StatusCode::kUnavailable,
                                            "blocks-00 cannot be fetched (west at 10.0.0.2:7000: Input/output error)");
  report.set_epoch(epoch);
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& each : detail.checkpoints()) {
    if (each.identity().iteration() == iteration) {
      *report.mutable_failure()->mutable_unreadable() = each.identity();
    }
  }
  return report;
}

TEST_CASE("files that another node cannot give for a minute cost no loss, and then an older checkpoint is taken") {
  Federation f = NorthLost();
  const int64_t begin_ns = f.now_ns();
  uint64_t epoch = 1;
  for (StartNorthAgain(f, epoch++); Tried(f) == 2; StartNorthAgain(f, epoch++)) {
    REQUIRE(f.now_ns() - begin_ns < 120 * kSecond);
    f.Answer("north", CutOffFrom(f, epoch, 2));
    f.Exit(DeviceAt("north"), 0, 1);
  }
  CHECK(f.now_ns() - begin_ns >= 60 * kSecond);
  CHECK(Tried(f) == 1);
  CHECK(epoch > 10);  // more tries than losses that are allowed
  CHECK(StatusOf(f, "north").trouble().empty());
  CHECK(ListedIn(f) == std::vector<int64_t>{1, 2});
  CHECK(f.broken == "");
}

TEST_CASE("nor do they cost a loss of a rank that finds out when its job recovers already") {
  Federation f = NorthLost();
  StartNorthAgain(f, 1);
  f.Answer("north", CutOffFrom(f, 2, 2));
  f.RunFor(2 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  f.Answer("east", CutOffFrom(f, 2, 2));
  f.RunFor(2 * kSecond);
  const v1::JobDetail detail = f.DetailOf("tiny");
  const v1::RecoverySummary& last = *detail.recoveries().rbegin();
  REQUIRE(last.workers_size() == 2);
  CHECK(last.workers(1).site() == "east");
  CHECK(last.workers(1).of_node());
}

TEST_CASE("a checkpoint that cannot be read for a while is tried again, then passed over, and stays listed") {
  Federation f = NorthLost();
  uint64_t epoch = 1;
  SECTION("its disk is back after some seconds") {
    for (int tries = 0; tries < 3; ++tries) {
      StartNorthAgain(f, epoch++);
      CHECK(Tried(f) == 2);
      FailToReadThere(f, epoch, 2, absl::StatusCode::kDataLoss);
      REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
      f.Exit(DeviceAt("north"), 0, 1);
    }
    StartNorthAgain(f, epoch);
    CHECK(Tried(f) == 2);
  }
  SECTION("it is not") {
    int tries = 0;
    for (StartNorthAgain(f, epoch++); Tried(f) == 2 && tries < 20; StartNorthAgain(f, epoch++)) {
      FailToReadThere(f, epoch, 2, absl::StatusCode::kDataLoss);
      REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
      f.Exit(DeviceAt("north"), 0, 1);
      ++tries;
    }
    CHECK(tries >= 4);
    CHECK(Tried(f) == 1);
    FailToReadThere(f, epoch, 1, absl::StatusCode::kDataLoss);  // nor can that of the other: the node is at fault
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    f.Exit(DeviceAt("north"), 0, 1);
    StartNorthAgain(f, epoch);
    CHECK(Tried(f) == 2);
  }
  SECTION("its file is not there: the one before, at once") {
    StartNorthAgain(f, epoch++);
    FailToReadThere(f, epoch, 2, absl::StatusCode::kNotFound);
    f.Exit(DeviceAt("north"), 0, 1);
    StartNorthAgain(f, epoch++);
    CHECK(Tried(f) == 1);
    FailToReadThere(f, epoch, 1, absl::StatusCode::kNotFound);  // nor that of the other: none is given up
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  }
  CHECK(ListedIn(f) == std::vector<int64_t>{1, 2});
  CHECK(f.broken == "");
}

}  // namespace
}  // namespace geopipe
