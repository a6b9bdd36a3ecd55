// Agents that are silent: what is waited for and for how long, who is blamed when it was too long, and what may still
// run where nobody can look.
#include <catch2/catch.hpp>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("a silent agent is suspect as long as others tell of progress") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  const auto others_tell = [&](int64_t iteration) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      f.Answer(f.sites[static_cast<size_t>(rank)], IterationReportOf(rank, 1, iteration));
    }
    f.RunFor(30 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  };
  others_tell(0);
  others_tell(1);
  SECTION("without progress it is the cause once its workers must have ended") {
    f.RunFor(6 * kSecond);
    CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 65.") == 0);
  }
  SECTION("it comes back with all that happened meanwhile") {
    others_tell(2);
    Return(f, "west", StateOf(v1::WORKER_PHASE_FINISHED, 1, 3), 2);
    for (int64_t i = 0; i < 3; ++i) {
      f.Answer("west", IterationReportOf(2, 1, i));
    }
    f.FinishAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
    CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
  }
  CHECK(f.broken == "");
}

// The workers of a silent agent end by themselves a grace after its last word, and nobody acts before.
TEST_CASE("the silence of an agent is judged by the grace of its workers, whoever was restarted meanwhile") {
  Federation before;
  before.orphan_grace_ns = 120 * kSecond;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  const auto check = [](Federation& f) {
    f.RunFor(124 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 125.") == 0);
  };
  SECTION("nobody was") {
    before.Close(before.sessions["west"]);
    check(before);
  }
  SECTION("the agent was, with a shorter grace for workers to come") {
    before.Close(before.sessions["west"]);
    before.orphan_grace_ns = 10 * kSecond;
    Return(before, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    before.Close(before.sessions["west"]);
    check(before);
  }
  SECTION("the coordinator was, and has not heard the agent since") {
    Federation f(NextLife(), before.Stored());
    for (const std::string site : {"north", "east"}) {
      Return(f, site, StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    }
    check(f);
  }
}

// The worker of a silent agent lives for ten planned iterations after the last: it is told so, and nobody acts before.
TEST_CASE("where iterations take longer than the grace, an agent's silence is judged by ten of them") {
  Federation before;
  before.iteration_ns = 20 * kSecond;
  before.DriveTo(v1::JOB_STATE_DEPLOYING);
  before.PrepareAll();
  REQUIRE(before.Commands(v1::WorkerCommand::kCommit) == 3);
  const v1::CommitCommand commit = before.Last<SendToAgent>().at(0).message.command().command().commit();
  CHECK(commit.orphan_grace_ns() == 200 * kSecond);
  CHECK(commit.rest_grace_ns() == 24 * 3600 * kSecond);
  before.CommitAll();
  Federation after(NextLife(), before.Stored());
  const bool restarted = GENERATE(false, true);
  Federation& f = restarted ? after : before;
  if (restarted) {
    for (const std::string site : {"north", "east"}) {
      Return(f, site, StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    }
  } else {
    f.Close(f.sessions["west"]);
  }
  f.RunFor(204 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 205.") == 0);
}

TEST_CASE(
    "an agent that is away when the last iteration is done is waited for, as long as its worker keeps its reports") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < 3; ++i) {
      f.Answer(f.sites[static_cast<size_t>(rank)], IterationReportOf(rank, 1, i));
    }
    f.Answer(f.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 1, 3));
  }
  f.RunFor(1000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.CauseOf("tiny") == "all iterations are done; it waits for the reports of agent west/n0");
  SECTION("it comes back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_FINISHED, 1, 3), 2);
    for (int64_t i = 0; i < 3; ++i) {
      f.Answer("west", IterationReportOf(2, 1, i));
    }
    f.Answer("west", FinishedReportOf(2, 1, 3));
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  }
  SECTION("its worker is gone") {
    f.Register("west", 2);
    f.RunFor(2 * kSecond);
    CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) is gone: its agent came back without it");
  }
}

TEST_CASE("no deadline acts before the grace of an agent that is silent, and it goes on when that one is back") {
  const bool returns = GENERATE(false, true);
  for (const JobState state : {v1::JOB_STATE_PROFILING, v1::JOB_STATE_DEPLOYING}) {
    INFO(JobStateName(state));
    CoordinatorOptions options = Federation::DefaultOptions();
    options.run.start_timeout_ns = options.run.profile_timeout_ns = 20 * kSecond;
    options.run.prepare_timeout_ns = 20 * kSecond;
    Federation f(options);
    f.DriveTo(state);
    f.RunFor(10 * kSecond);
    f.Close(f.sessions["west"]);
    f.RunFor(34 * kSecond);
    CHECK(f.StateOf("tiny") == state);
    if (!returns) {
      f.RunFor(2 * kSecond);
      CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 35.") == 0);
      continue;
    }
    Return(f, "west", StateOf(v1::WORKER_PHASE_IDLE, 0, 0), 2);
    f.RunFor(9 * kSecond);
    CHECK(f.StateOf("tiny") == state);
    f.RunFor(2 * kSecond);
    CHECK(f.CauseOf("tiny").find("within 20.0 s") != std::string::npos);
  }
}

TEST_CASE("where heartbeats are rare an agent may have lived for longer than it was heard") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.heartbeat_interval_ns = 10 * kSecond;
  options.membership.suspect_after_ns = 25 * kSecond;
  options.membership.failed_after_ns = 60 * kSecond;
  Federation f(options);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  f.RunFor(49 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  f.RunFor(2 * kSecond);
  CHECK(f.CauseOf("tiny").find("agent west/n0 (site west) has not been heard from for 50.") == 0);
}

// Job "tiny" runs, and job "second" waits for its device at west.
struct Waiting {
  Waiting() {
    f.DriveTo(v1::JOB_STATE_RUNNING);
    JobSpec second = Federation::TinyJob({"west"});
    second.name = "second";
    f.Step(ApplyJob{90, second, {}});
    worker = f.IdOf(DeviceAt("west"));
  }

  void TellExit() {
    AgentMessage event{f.sessions["west"], {}};
    event.message.set_incarnation(2);
    v1::WorkerExit& exit = *f.AddReport(event).mutable_exit();
    *exit.mutable_worker() = worker;
    exit.set_signal(9);
    f.Step(event);
  }
  void TakeOrders(uint64_t agent, const std::string& site = "west") {
    v1::ConnectRequest message;
    message.set_incarnation(agent);
    message.mutable_heartbeat();
    message.set_orders_taken(100);
    f.Step(AgentMessage{f.sessions[site], message});
  }
  bool held() {
    return f.CauseOf("second") ==
           "waiting for job tiny (over; its worker west/n0/0 is not known to have ended), which holds devices of "
           "site west: 0 of 1 devices are free";
  }

  Federation f;
  v1::WorkerId worker;
};

TEST_CASE("a worker that no agent knows is not replaced while it may train on with one that is out of reach") {
  Federation f(Federation::RecoveringOptions());
  f.sites = {"east", "west"};
  f.job = Federation::TinyJob(f.sites);
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  const uint64_t first = f.IdOf(DeviceAt("west")).incarnation();
  f.Close(f.sessions["east"]);
  f.Close(f.sessions["west"]);
  f.Register("west", 2);  // without its worker
  f.RunFor(300 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.IdOf(DeviceAt("west")).incarnation() == first);
  Return(f, "east", StateOf(v1::WORKER_PHASE_TRAINING, 1, 2));
  f.Answer("east", EndedReportOf(0, 1, 2));
  f.RunFor(34 * kSecond);
  CHECK(f.IdOf(DeviceAt("west")).incarnation() == first);
  f.RunFor(2 * kSecond);
  CHECK(f.IdOf(DeviceAt("west")).incarnation() > first);
  CHECK(f.broken == "");
}

TEST_CASE("no device is given away on which a worker may still run that no agent knows") {
  Waiting waiting;
  Federation& f = waiting.f;
  f.Close(f.sessions["west"]);
  SECTION("its agent came back without it") {
    f.Register("west", 2);
    f.RunFor(2 * kSecond);
    REQUIRE(f.CauseOf("tiny") == "worker west/n0/0 (site west) is gone: its agent came back without it");
    CHECK(waiting.held());
    SECTION("it ends by itself") {
      f.RunFor(33 * kSecond);
      CHECK(waiting.held());
      f.RunFor(2 * kSecond);
    }
    SECTION("its end is told") { waiting.TellExit(); }
  }
  SECTION("the end was told before the job was over") {
    f.Register("west", 2);
    waiting.TellExit();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  }
  SECTION("as long as a peer may be under an agent that is cut off, both may go on") {
    f.Close(f.sessions["east"]);
    f.Register("west", 2);
    f.Step(CancelJob{91, "tiny", ""});
    f.RunFor(1000 * kSecond);
    CHECK(waiting.held());
    f.Register("east", 1, {f.IdOf(DeviceAt("east"))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 700)});
    waiting.TakeOrders(1, "east");
    f.RunFor(34 * kSecond);
    CHECK(waiting.held());
    f.RunFor(2 * kSecond);
  }
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("no device is given away whose agent is silent before that has obeyed, or is followed by another") {
  Waiting waiting;
  Federation& f = waiting.f;
  SECTION("the job is cancelled while its agent is away") {
    f.Close(f.sessions["west"]);
    f.RunFor(10 * kSecond);
    f.Step(CancelJob{91, "tiny", ""});
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
    CHECK(f.StateOf("second") == v1::JOB_STATE_PENDING);
    SECTION("it comes back, and stops the worker") {
      f.Register("west", 1, {waiting.worker}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 0)});
    }
    SECTION("the next one stops it") {
      f.Register("west", 2, {waiting.worker}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 0)});
    }
    SECTION("the next one has not got it") {
      f.RunFor(1000 * kSecond);  // the one before may have lived until now, and its worker with it
      f.Register("west", 2);
      f.RunFor(34 * kSecond);
      CHECK(waiting.held());
      f.RunFor(2 * kSecond);
    }
  }
  SECTION("its agent was only late") {
    for (int i = 0; i < 30; ++i) {
      f.Advance(kSecond / 10);
      f.Heartbeat(f.sessions["north"]);
      f.Heartbeat(f.sessions["east"]);
      f.Step(Tick{});
    }
    f.Step(CancelJob{91, "tiny", ""});
    CHECK(waiting.held());
    waiting.TakeOrders(1);
  }
  CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  CHECK(f.broken == "");
}

TEST_CASE("with no agent to be heard nobody is blamed: it may be the coordinator that is cut off") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  for (const std::string& site : f.sites) {
    f.Close(f.sessions[site]);
  }
  f.RunFor(1000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.CauseOf("tiny").find("none of its agents can be heard") == 0);
}

}  // namespace
}  // namespace geopipe
