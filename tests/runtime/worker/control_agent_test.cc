// Tests how a worker speaks with its agent, and what it does without one.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/worker/worker_control.h"
#include "tests/runtime/worker/control_harness.h"

namespace geopipe {
namespace {

// The next agent gets the reports that the coordinator has not taken, from the first one on.
TEST_CASE("a new agent process counts its commands anew, and a command that was taken is not carried out again") {
  Harness worker;
  worker.Open();
  worker.Command(PrepareOf(1), 1);
  worker.Step(PreparedOf(1));
  worker.Command(CommitOf(1), 2);
  worker.Command(CommitOf(1), 2);
  worker.Step(Connected{1});
  worker.Step(FinishedOf(1, 0));
  CHECK(worker.reports.size() == 3);
  worker.Beat(1);
  worker.Break();
  worker.Pass(1);
  REQUIRE(worker.Count<DialAgent>() == 2);
  CHECK(worker.hellos[1].agent_incarnation() == 5);
  CHECK(worker.hellos[1].commands_taken() == 2);
  CHECK(worker.hellos[1].status().phase() == v1::WORKER_PHASE_TRAINING);
  CHECK(worker.hellos[1].status().next_iteration() == 1);
  worker.Step(StreamOpened{1});  // of the first: passed over
  CHECK(worker.reports.size() == 3);
  worker.Open();
  REQUIRE(worker.reports.size() == 5);
  CHECK(worker.reports[3].sequence() == 2);
  CHECK(worker.reports[4].sequence() == 3);
  // Before a word of that agent came, nobody knows whether it is the one that gave these commands.
  CHECK(worker.commands_taken == 0);
  worker.Pass(1);
  CHECK(worker.commands_taken == 0);
  worker.agent = 6;
  worker.Command(EndOf(1), 1);
  CHECK(worker.Count<EndTraining>() == 1);
  worker.Command(EndOf(1), 1);
  CHECK(worker.Count<EndTraining>() == 1);
  worker.Pass(1);
  CHECK(worker.commands_taken == 1);
}

TEST_CASE("a stream that takes nothing is handed a bounded number of reports, and the rest when it writes") {
  Harness worker;
  worker.Open();
  Train(worker, 1);
  worker.writes = false;
  for (int64_t iteration = 0; iteration < 1000; ++iteration) {
    worker.Step(FinishedOf(1, iteration));
  }
  CHECK(worker.reports.size() == 2 + WorkerControl::kMaxUnwritten);
  worker.writes = true;
  worker.Step(WorkerTick{});
  CHECK(worker.reports.size() == 2 + 1000);
}

// The newest state of all ranks is found from it.
TEST_CASE("an orphan stops at its grace, and neither a word nor a finished iteration leaves an orphan") {
  Harness worker;
  worker.Open();
  worker.Beat();
  Train(worker, 1);
  worker.Break();
  int64_t iteration = 0;
  worker.Pass(100, [&] { worker.Step(FinishedOf(1, iteration++)); });
  CHECK(worker.Count<ExitWorker>() == 0);
  worker.Pass(29);
  CHECK(worker.Count<ExitWorker>() == 0);
  worker.Pass(2);
  CHECK(worker.Last<ExitWorker>().code == 1);

  Harness heard;
  heard.Open();
  heard.Pass(100, [&] { heard.Beat(); });
  CHECK(heard.Count<ExitWorker>() == 0);
}

TEST_CASE("an iteration that takes longer than the grace is waited for, as long as its epoch says") {
  Harness worker;
  worker.Open();
  worker.Beat();
  v1::WorkerCommand commit = CommitOf(1);
  commit.mutable_commit()->set_orphan_grace_ns(400 * kSecondNs);
  commit.mutable_commit()->set_rest_grace_ns(4000 * kSecondNs);
  worker.Command(PrepareOf(1));
  worker.Step(PreparedOf(1));
  worker.Command(commit);
  worker.Step(Connected{1});
  worker.Break();
  for (int64_t iteration = 0; iteration < 5; ++iteration) {
    worker.Pass(399);
    worker.Step(FinishedOf(1, iteration));
  }
  CHECK(worker.Count<ExitWorker>() == 0);
  SECTION("training") { worker.Pass(399); }
  SECTION("after it was left alone: its peers did not pause") {
    worker.Step(ReturnedOf(1, 5, absl::UnavailableError("a peer is gone")));
    worker.Pass(399);
  }
  SECTION("the next epoch has a grace of its own, and none before it is committed") {
    worker.Open();
    worker.Beat();
    worker.Command(EndOf(1));
    worker.Step(ReturnedOf(1, 5));
    worker.Command(PrepareOf(2, 5));
    worker.Step(PreparedOf(2, 5));
    worker.Break();
    worker.Pass(29);
  }
  CHECK(worker.Count<ExitWorker>() == 0);
  worker.Pass(2);
  CHECK(worker.Count<ExitWorker>() == 1);
}

TEST_CASE("who is paused or has finished keeps its state, and what it has not told, for much longer than its grace") {
  Harness worker;
  worker.Open();
  worker.Beat();
  v1::WorkerCommand commit = CommitOf(1);
  commit.mutable_commit()->set_rest_grace_ns(4000 * kSecondNs);
  worker.Command(PrepareOf(1));
  worker.Step(PreparedOf(1));
  worker.Command(commit);
  worker.Step(Connected{1});
  const bool is_paused = GENERATE(true, false);
  if (is_paused) {
    worker.Command(EndOf(1));
  }
  worker.Break();
  // A peer may have ended before it, as it was told to.
  const bool is_alone = is_paused && GENERATE(false, true);
  const absl::Status status = is_alone ? absl::UnavailableError("a peer is gone") : absl::OkStatus();
  worker.Step(ReturnedOf(1, is_paused ? 3 : 10, status));
  SECTION("as long as an agent may come") {
    worker.Pass(3999);
    CHECK(worker.Count<ExitWorker>() == 0);
    worker.Pass(2);
    CHECK(worker.Count<ExitWorker>() == 1);
  }
  SECTION("none can come any more") {
    worker.Pass(100);
    CHECK(worker.Count<ExitWorker>() == 0);
    worker.Step(WorkerTick{.next_iteration = 0, .action = "", .action_ns = 0, .has_home = false});
    CHECK(worker.Count<ExitWorker>() == 1);
  }
}

TEST_CASE("a silent stream is given up for another: after a word, after it was opened, or when it never was") {
  Harness worker;
  bool opens = true;
  SECTION("a beat came") {
    worker.Open();
    worker.Pass(3);
    worker.Jump(kSecondNs / 2);  // not with a heartbeat
    worker.Beat();
  }
  SECTION("it is open: of an agent that was stopped before its first beat") {
    worker.Pass(3);
    worker.Jump(kSecondNs / 2);
    worker.Open();
  }
  SECTION("it does not come about") { opens = false; }
  for (int round = 1; round < 4; ++round) {
    const int64_t since_ns = worker.now_ns();
    worker.Until<HangUp>();
    CHECK(worker.now_ns() - since_ns == WorkerControl::kAgentSilentNs);
    CHECK(worker.Last<HangUp>().stream == static_cast<AgentStreamId>(round));
    CHECK(worker.Count<DialAgent>() == round + 1);
    if (opens) {
      worker.Open();
    }
  }
  worker.Pass(100, [&] {
    worker.Open();
    worker.Beat();
  });
  CHECK(worker.Count<HangUp>() == 3);
}

TEST_CASE("an open socket is no word: who never hears an agent is an orphan a grace after its start") {
  const bool listens = GENERATE(true, false);
  Harness worker;
  const int64_t start_ns = worker.now_ns();
  AgentStreamId opened = 0;
  while (worker.Count<ExitWorker>() == 0) {
    if (listens && worker.stream() != opened) {
      opened = worker.stream();
      worker.Open();
    }
    worker.Pass(1);
  }
  CHECK(worker.now_ns() - start_ns == Harness::Options().orphan_grace_ns);
  CHECK(worker.Last<ExitWorker>().code == 1);
  CHECK_FALSE(worker.Last<ExitWorker>().has_words);  // though a socket is open: nobody is there to hear them
  CHECK(worker.Last<ExitWorker>().reason == "no agent was heard and no iteration finished for 30 s");
}

TEST_CASE("a pause of the process counts as a second") {
  Harness worker;
  worker.Open();
  worker.Beat();
  Train(worker, 1);
  for (int i = 0; i < 20; ++i) {
    worker.Jump(3600 * kSecondNs);
    worker.Step(WorkerTick{});
  }
  CHECK(worker.Count<ExitWorker>() == 0);
}

TEST_CASE("attempts follow each other within a second, and a refusal for good ends the worker") {
  Harness worker;
  for (int i = 0; i < 25; ++i) {
    const int dialed = worker.Count<DialAgent>();
    worker.Break();
    CHECK(worker.control().next_deadline_ns() <= worker.now_ns() + WorkerControl::kMaxBackoffNs);
    worker.Pass(1);
    CHECK(worker.Count<DialAgent>() == dialed + 1);
  }
  CHECK(worker.Count<ExitWorker>() == 0);
  worker.Break(absl::UnauthenticatedError("unknown worker"));
  CHECK(worker.Last<ExitWorker>().code == 1);
  CHECK(worker.Last<ExitWorker>().reason == "unknown worker");
}

TEST_CASE("a heartbeat a second carries phase, iteration and the action under way") {
  Harness worker;
  worker.Open();
  worker.Pass(1);
  CHECK(worker.heartbeats.back().heartbeat().iteration() == -1);
  CHECK(worker.heartbeats.back().heartbeat().status().phase() == v1::WORKER_PHASE_IDLE);
  Train(worker, 1);
  worker.heartbeats.clear();
  worker.Jump(kSecondNs);
  worker.Step(WorkerTick{.next_iteration = 2, .action = "0F3", .action_ns = 5});
  REQUIRE(worker.heartbeats.size() == 1);
  const v1::WorkerHeartbeat& heartbeat = worker.heartbeats.back().heartbeat();
  CHECK(heartbeat.iteration() == 2);
  CHECK(heartbeat.status().next_iteration() == 2);
  CHECK(heartbeat.status().action() == "0F3");
  CHECK(heartbeat.status().action_ns() == 5);
  worker.heartbeats.clear();
  worker.Step(WorkerTick{});
  CHECK(worker.heartbeats.empty());
  worker.Pass(10, [&] { worker.Beat(); });
  CHECK(worker.heartbeats.size() == 10);
  CHECK(worker.heartbeats.back().heartbeat().status().action().empty());
}

}  // namespace
}  // namespace geopipe
