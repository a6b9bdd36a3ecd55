// Processes of the control plane come and go; jobs do not notice. A restarted coordinator is a new core that begins
// with the state that the old one has made durable.
#include <catch2/catch.hpp>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("after a restart in any state the job goes on to its end") {
  struct Case {
    JobState state;
    v1::WorkerPhase phase;
    uint64_t epoch;
    std::vector<void (Federation::*)()> rest;
  };
  const std::vector<void (Federation::*)()> steps = {&Federation::ProfileAll, &Federation::PlanNow,
                                                     &Federation::PrepareAll, &Federation::CommitAll};
  const Case cases[] = {
      {v1::JOB_STATE_PROFILING, v1::WORKER_PHASE_IDLE, 0, {steps.begin(), steps.end()}},
      {v1::JOB_STATE_PLANNING, v1::WORKER_PHASE_IDLE, 0, {steps.begin() + 1, steps.end()}},
      {v1::JOB_STATE_DEPLOYING, v1::WORKER_PHASE_PREPARED, 1, {steps.begin() + 2, steps.end()}},
      {v1::JOB_STATE_RUNNING, v1::WORKER_PHASE_TRAINING, 1, {}},
  };
  for (const Case& each : cases) {
    INFO(JobStateName(each.state));
    Federation before;
    before.DriveTo(each.state);
    REQUIRE(before.StateOf("tiny") == each.state);
    const StoredState stored = before.Stored();
    Federation f(NextLife(), stored);
    CHECK(f.StateOf("tiny") == each.state);
    ReturnAll(f, StateOf(each.phase, each.epoch, 0));
    CHECK(f.StateOf("tiny") == each.state);
    CHECK(f.Stops() == 0);
    const int commands = static_cast<int>(f.Last<SendToAgent>().size()) - 1;  // after the last welcome
    CHECK(commands == (each.state == v1::JOB_STATE_PROFILING || each.state == v1::JOB_STATE_DEPLOYING ? 3 : 0));
    CHECK(f.Last<StartPlanning>().size() == (each.state == v1::JOB_STATE_PLANNING ? 1 : 0));
    if (each.state == v1::JOB_STATE_PLANNING) {
      CHECK(f.planning[0].input.profile->entries.size() == 6);
      CHECK(f.planning[0].input.cluster.links.size() == 3);
    }
    for (const auto step : each.rest) {
      (f.*step)();
    }
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    for (int64_t i = 0; i < 3; ++i) {
      f.IterateAll(i);
    }
    f.FinishAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
    CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
    CHECK(f.broken == "");
  }
}

TEST_CASE("a job that waits goes on waiting, in its place") {
  Federation before;
  for (const std::string name : {"first", "second"}) {
    JobSpec job = Federation::TinyJob();
    job.name = name;
    before.Step(ApplyJob{before.next_call++, job, {}});
  }
  Federation f(NextLife(), before.Stored());
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  CHECK(f.StateOf("first") == v1::JOB_STATE_PROFILING);
  CHECK(f.StateOf("second") == v1::JOB_STATE_PENDING);
}

TEST_CASE("iterations that were reported by some ranks only are not lost with the coordinator that heard of them") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.IterateAll(0);
  before.Answer("north", IterationReportOf(0, 1, 1));
  before.Answer("east", IterationReportOf(1, 1, 1));
  before.RunFor(kSecond);  // stored by now, and acknowledged
  Federation f(NextLife(), before.Stored());
  ReturnAll(f, StateOf(v1::WORKER_PHASE_TRAINING, 1, 2));
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 1);
  f.Answer("west", IterationReportOf(2, 1, 1));
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 2);
  f.Step(WatchStart{f.next_call++, "tiny", 0, 100});
  std::vector<int64_t> watched;
  const SendToWatcher sent = f.Last<SendToWatcher>().at(0);
  for (const v1::WatchJobResponse& message : sent.messages) {
    if (message.has_iteration()) {
      watched.push_back(message.iteration().iteration());
      CHECK_FALSE(message.iteration().incomplete());
    }
  }
  CHECK(watched == std::vector<int64_t>{0, 1});
  CHECK(f.broken == "");
}

TEST_CASE("reports are acknowledged when they are durable, and a failing store delays both") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.RunFor(kSecond);
  const auto acknowledged = [&]() -> uint64_t {
    uint64_t sequence = 0;
    bool stored = false;
    for (const Effect& effect : f.last) {
      stored = stored || std::holds_alternative<PersistProgress>(effect);
      if (const auto* send = std::get_if<SendToAgent>(&effect); send != nullptr && send->message.has_reports_taken()) {
        CHECK(stored);
        sequence = std::max(sequence, send->message.reports_taken().sequence());
      }
    }
    return sequence;
  };
  f.Answer("north", IterationReportOf(0, 1, 0));
  CHECK(acknowledged() == f.next_report);
  const PersistProgress lost = f.Last<PersistProgress>().at(0);
  f.Step(ProgressNotStored{lost, absl::ResourceExhaustedError("the disk is full")});
  CHECK(f.Last<LogEntry>().at(0).text == "the disk is full; trying again");
  f.Step(Tick{});
  CHECK(f.Last<PersistProgress>().empty());
  f.Advance(kSecond);
  f.Step(Tick{});
  REQUIRE(f.Last<PersistProgress>().size() == 1);
  CHECK(f.Last<PersistProgress>()[0].progress.at(0).partial.size() == 1);
  CHECK(acknowledged() == f.next_report);

  const auto logged = [&](const std::string& text) {
    const std::vector<LogEntry> entries = f.Last<LogEntry>();
    return std::ranges::count(entries, text, &LogEntry::text);
  };
  f.Step(ProgressNotStored{lost, absl::ResourceExhaustedError("the disk is full")});
  CHECK(logged("the disk is full; trying again") == 0);  // that is known
  f.Advance(kSecond);
  f.Step(Tick{});  // it is stored
  f.Answer("east", IterationReportOf(1, 1, 0));
  f.Advance(kSecond);
  f.Step(Tick{});
  CHECK(logged("the job store is written again") == 1);
  f.Step(ProgressNotStored{f.Last<PersistProgress>().at(0), absl::ResourceExhaustedError("the disk is full")});
  CHECK(logged("the disk is full; trying again") == 1);
}

TEST_CASE("an agent that was restarted is told again what its workers have not answered") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_DEPLOYING);
  f.Answer("north", PreparedReportOf(0, 1));
  f.Close(f.sessions["west"]);
  Return(f, "west", StateOf(v1::WORKER_PHASE_IDLE, 0, 0), 2);
  REQUIRE(f.Commands(v1::WorkerCommand::kPrepare) == 1);
  CHECK(f.Last<SendToAgent>().back().message.command().worker().site() == "west");
  f.PrepareAll();
  f.CommitAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.broken == "");
}

TEST_CASE("a worker that its agent came back without is the cause, unless its exit says more") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  f.Register("west", 2);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  SECTION("nothing more") {
    f.RunFor(2 * kSecond);
    CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west) is gone: its agent came back without it");
  }
  SECTION("its keeper knows") {
    f.Exit(DeviceAt("west"), 11);
    CHECK(f.CauseOf("tiny") == "worker west/n0/0 (site west, pid 100) was killed by signal 11 (SIGSEGV)");
  }
}

TEST_CASE("a coordinator that was stopped for two minutes blames nobody") {
  for (const JobState state : {v1::JOB_STATE_PROFILING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING}) {
    INFO(JobStateName(state));
    Federation f;
    f.DriveTo(state);
    f.Advance(700 * kSecond);
    f.Heartbeat(f.sessions["east"]);  // what waited in the inbox comes first
    f.RunFor(3 * kSecond);
    CHECK(f.StateOf("tiny") == state);
    CHECK(f.broken == "");
  }
}

TEST_CASE("a lost iteration report fails no job") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Answer("north", IterationReportOf(0, 1, 1));
  f.Answer("east", IterationReportOf(1, 1, 1));  // west's is lost
  f.IterateAll(2);
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
  f.FinishAll();
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(f.broken == "");
}

TEST_CASE("a stopped worker and a stuck one are named") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  SECTION("stopped") {
    AgentMessage event{f.sessions["east"], {}};
    event.message.set_incarnation(1);
    v1::WorkerSilent& silent = *f.AddReport(event).mutable_silent();
    *silent.mutable_worker() = f.IdOf(DeviceAt("east"));
    silent.set_pid(100);
    silent.set_silent_ns(4 * kSecond);
    f.Step(std::move(event));
    CHECK(f.CauseOf("tiny") ==
          "worker east/n0/0 (site east, pid 100) is alive but has been silent for 4.0 s: it is stopped or stuck");
  }
  SECTION("stuck") {
    v1::WorkerReport report;
    report.set_epoch(1);
    v1::WorkerStatus& status = *report.mutable_heartbeat()->mutable_status();
    status.set_epoch(1);
    status.set_phase(v1::WORKER_PHASE_TRAINING);
    status.set_next_iteration(1);
    status.set_action("1F3");
    status.set_action_ns(6 * kSecond);
    f.Answer("east", report);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);  // the host may have been stopped
    status.set_action_ns(7 * kSecond);
    f.Answer("east", report);
    CHECK(f.CauseOf("tiny") ==
          "worker east/n0/0 (site east) is stuck: 1F3 of iteration 1 has taken 7.0 s so far and should take 5.0 s at "
          "most");
  }
}

TEST_CASE("the curve of a job that was over before a restart can be watched") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_COMPLETED);
  before.RunFor(kSecond);
  const std::string measured = before.DetailOf("tiny").measured().DebugString();
  CHECK(before.DetailOf("tiny").measured().tokens_per_s() > 0);
  Federation f(NextLife(), before.Stored());
  f.Step(WatchStart{70, "tiny", 0, 100});
  REQUIRE(f.Last<LoadIterations>().size() == 1);
  CHECK(f.Last<SendToWatcher>().empty());
  std::vector<v1::IterationSummary> summaries(3);
  for (int64_t i = 0; i < 3; ++i) {
    summaries[static_cast<size_t>(i)].set_iteration(i);
    summaries[static_cast<size_t>(i)].set_duration_ns(7000);
  }
  f.Step(IterationsLoaded{"tiny", summaries});
  REQUIRE(f.Last<SendToWatcher>().size() == 1);
  CHECK(f.Last<SendToWatcher>()[0].messages.size() == 6 + 3);  // all states, all iterations
  CHECK(f.Last<EndWatch>().at(0).status.ok());
  f.Step(WatchStart{71, "tiny", 1, 100});  // now it is known
  CHECK(f.Last<LoadIterations>().empty());
  CHECK(f.Last<SendToWatcher>().at(0).messages.size() == 6 + 2);
  CHECK(f.DetailOf("tiny").measured().DebugString() == measured);
}

}  // namespace
}  // namespace geopipe
