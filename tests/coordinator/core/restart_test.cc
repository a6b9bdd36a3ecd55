// Processes of the control plane come and go; jobs do not notice. A restarted coordinator is a new core that begins
// with what the old one has made durable.
#include <catch2/catch.hpp>

#include "tests/coordinator/core/federation.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

WorkerKey DeviceAt(const std::string& site) { return {site, "n0", 0}; }

CoordinatorOptions NextLife() {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.incarnation += uint64_t{1} << 32;
  return options;
}

v1::WorkerState StateOf(v1::WorkerPhase phase, uint64_t epoch, int64_t next_iteration, bool attached = true) {
  v1::WorkerState state;
  state.set_pid(100);
  state.set_attached(attached);
  state.mutable_status()->set_phase(phase);
  state.mutable_status()->set_epoch(epoch);
  state.mutable_status()->set_next_iteration(next_iteration);
  return state;
}

// The agent of the site returns, with its worker alive.
void Return(Federation& f, const std::string& site, const v1::WorkerState& state, uint64_t agent = 1) {
  f.Register(site, agent, {f.IdOf(DeviceAt(site))}, 1, {state});
}

void ReturnAll(Federation& f, const v1::WorkerState& state) {
  for (const std::string& site : f.sites) {
    Return(f, site, state);
  }
}

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
}

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
  CHECK(f.CauseOf("tiny") == "all iterations are done; it waits for agent west/n0 to tell what its workers did");
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
    v1::WorkerSilent& silent = *f.AddReport(event.message).mutable_silent();
    *silent.mutable_worker() = f.IdOf(DeviceAt("east"));
    silent.set_pid(100);
    silent.set_silent_ns(4 * kSecond);
    f.Step(std::move(event));
    CHECK(f.CauseOf("tiny") ==
          "worker east/n0/0 (site east, pid 100) lives and has said nothing for 4.0 s: it is stopped or stuck");
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

void EndAll(Federation& f, int64_t next_iteration, uint64_t epoch = 1) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report;
    report.set_epoch(epoch);
    report.mutable_ended()->set_rank(static_cast<int32_t>(rank));
    report.mutable_ended()->set_next_iteration(next_iteration);
    f.Answer(f.sites[rank], report);
  }
}

TEST_CASE("a job is paused at the end of an iteration and goes on from there in a new epoch") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  CHECK(f.Last<PersistRecord>().at(0).record.pause_wanted());
  f.Step(PauseJob{91, "tiny"});
  CHECK_FALSE(f.Last<ReplyToCall>().at(0).reply.ok());
  bool restarted = false;
  SECTION("undisturbed") {}
  SECTION("with a restart in between") { restarted = true; }

  v1::WorkerReport ended;
  ended.set_epoch(1);
  ended.mutable_ended()->set_rank(0);
  ended.mutable_ended()->set_next_iteration(1);
  f.Answer("north", ended);
  // The others are told where: what they are in the middle of cannot be finished.
  REQUIRE(f.Commands(v1::WorkerCommand::kEndEpoch) == 2);
  CHECK(f.Last<SendToAgent>().at(0).message.command().command().end_epoch().next_iteration() == 1);
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 1");
  f.RunFor(100 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);

  Federation next(NextLife(), f.Stored());
  Federation& g = restarted ? next : f;
  if (restarted) {
    ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  g.Step(ResumeJob{92, "tiny", "second secret"});
  REQUIRE(g.Last<ReplyToCall>().at(0).reply.ok());
  // The epoch is stored with the state, at once: between two writes the coordinator may die, and would then wait for an
  // epoch that no worker has heard of.
  CHECK(g.Last<PersistRecord>().empty());
  REQUIRE(g.Last<PersistTransition>().size() == 1);
  CHECK(g.Last<PersistTransition>()[0].record->epoch().number() == 2);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(g.CauseOf("tiny") == "epoch 2 goes on from iteration 1");
  g.PrepareAll();
  REQUIRE(g.Commands(v1::WorkerCommand::kCommit) == 3);
  const v1::CommitCommand commit = g.Last<SendToAgent>().at(0).message.command().command().commit();
  CHECK(commit.start_iteration() == 1);
  CHECK(commit.secret() == "second secret");
  g.CommitAll();
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  g.Answer("north", IterationReportOf(0, 1, 1));  // of the epoch that ended: nothing
  g.IterateAll(1);
  g.IterateAll(2);
  for (int32_t rank = 0; rank < 3; ++rank) {
    g.Answer(g.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 2, 3));
  }
  const v1::JobDetail detail = g.DetailOf("tiny");
  CHECK(detail.summary().state() == v1::JOB_STATE_COMPLETED);
  CHECK(detail.summary().iterations_done() == 3);
  REQUIRE(detail.epochs_size() == 2);
  CHECK(detail.epochs(0).next_iteration() == 1);
  CHECK(detail.epochs(1).first_iteration() == 1);
  CHECK(detail.epochs(1).next_iteration() == 3);
  CHECK(g.broken == "");
}

// A worker that does not hear of its epoch's end is left alone by its peers, and loses its state after its grace.
TEST_CASE("a pause comes about when all agents can be heard, and costs nothing before") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Close(f.sessions["west"]);
  f.Step(PauseJob{90, "tiny"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Last<PersistRecord>().at(0).record.pause_wanted());
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
  CHECK(f.CauseOf("tiny") == "it pauses when agent west/n0 can be heard");
  SECTION("it comes back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    f.Step(Tick{});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    CHECK(f.CauseOf("tiny") == "it pauses after the iteration under way");
    EndAll(f, 1);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    f.Step(ResumeJob{91, "tiny", "second secret"});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("it was restarted, and so was the coordinator, which is asked before all are there") {
    Federation g(NextLife(), f.Stored());
    Return(g, "north", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    Return(g, "east", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    g.Step(ResumeJob{91, "tiny", "second secret"});
    g.Step(PauseJob{92, "tiny"});
    Return(g, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    g.Step(Tick{});
    EndAll(g, 1);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    g.Step(ResumeJob{93, "tiny", "third secret"});
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("the pause is taken back") {
    f.Step(ResumeJob{91, "tiny", "second secret"});
    REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
    Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0), 2);
    f.RunFor(kSecond);
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 0);
    for (int64_t i = 0; i < 3; ++i) {
      f.IterateAll(i);
    }
    f.FinishAll();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  }
  SECTION("a peer is lost: that is no pause") {
    f.Exit(DeviceAt("north"), 9);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  }
  SECTION("the coordinator is restarted, and orders it when all are there") {
    Federation g(NextLife(), f.Stored());
    ReturnAll(g, StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
    CHECK(g.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    EndAll(g, 1);
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a paused job waits for an agent that is away, and is resumed when it is back") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  EndAll(f, 1);
  f.Close(f.sessions["west"]);
  f.RunFor(3000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "paused before iteration 1");
  f.Step(ResumeJob{91, "tiny", "second secret"});
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  CHECK(f.Last<PersistRecord>().at(0).record.next_secret() == "second secret");
  f.RunFor(1000 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(f.CauseOf("tiny") == "it goes on when agent west/n0 can be heard");
  f.Step(ResumeJob{92, "tiny", "third secret"});
  CHECK(f.Last<ReplyToCall>().at(0).reply.status().message() ==
        "job tiny is about to be resumed already: it goes on when agent west/n0 can be heard");
  SECTION("it comes back") {
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1), 2);
    f.Step(Tick{});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    CHECK(f.CauseOf("tiny") == "epoch 2 goes on from iteration 1");
  }
  SECTION("the coordinator was restarted meanwhile") {
    Federation g(NextLife(), f.Stored());
    ReturnAll(g, StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    g.Step(Tick{});
    CHECK(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  SECTION("it is to be paused after all") {
    f.Step(PauseJob{93, "tiny"});
    REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1), 2);
    f.RunFor(kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    f.Step(ResumeJob{94, "tiny", "fourth secret"});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  }
  CHECK(f.broken == "");
}

// "second" waits for the device at west.
TEST_CASE("no device is given away on which a worker may still run that no agent knows") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  JobSpec second = Federation::TinyJob({"west"});
  second.name = "second";
  f.Step(ApplyJob{90, second, {}});
  const v1::WorkerId worker = f.IdOf(DeviceAt("west"));
  const auto exit_of_worker = [&] {
    v1::ConnectRequest message;
    message.set_incarnation(2);
    v1::WorkerExit& exit = *f.AddReport(message).mutable_exit();
    *exit.mutable_worker() = worker;
    exit.set_signal(9);
    f.Step(AgentMessage{f.sessions["west"], message});
  };
  const std::string held =
      "waiting for job tiny (over; its worker west/n0/0 may still run), which holds devices of site west: 0 of 1 "
      "devices "
      "are free";
  SECTION("its agent came back without it") {
    f.Close(f.sessions["west"]);
    f.Register("west", 2);
    f.RunFor(2 * kSecond);
    REQUIRE(f.CauseOf("tiny") == "worker west/n0/0 (site west) is gone: its agent came back without it");
    CHECK(f.CauseOf("second") == held);
    SECTION("it ends by itself") {
      f.RunFor(33 * kSecond);
      CHECK(f.StateOf("second") == v1::JOB_STATE_PENDING);
      f.RunFor(2 * kSecond);
    }
    SECTION("its end is told") { exit_of_worker(); }
    CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  }
  SECTION("the end was told before the job was over") {
    f.Close(f.sessions["west"]);
    f.Register("west", 2);
    exit_of_worker();
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
    CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  }
  SECTION("the job is cancelled while its agent is away") {
    f.Close(f.sessions["west"]);
    f.RunFor(10 * kSecond);
    f.Step(CancelJob{91, "tiny", ""});
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
    CHECK(f.StateOf("second") == v1::JOB_STATE_PENDING);
    SECTION("it comes back, and stops the worker") {
      f.Register("west", 1, {worker}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 0)});
    }
    SECTION("the next one stops it") { f.Register("west", 2, {worker}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 0)}); }
    SECTION("the next one has not got it") {
      f.Register("west", 2);
      f.RunFor(24 * kSecond);
      CHECK(f.CauseOf("second") == held);
      f.RunFor(2 * kSecond);
    }
    CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  }
  SECTION("its agent was only late") {
    for (int i = 0; i < 30; ++i) {
      f.Advance(kSecond / 10);
      f.Heartbeat(f.sessions["north"]);
      f.Heartbeat(f.sessions["east"]);
      f.Step(Tick{});
    }
    f.Step(CancelJob{91, "tiny", ""});
    CHECK(f.CauseOf("second") == held);
    f.Heartbeat(f.sessions["west"]);
    CHECK(f.StateOf("second") == v1::JOB_STATE_PROFILING);
  }
  CHECK(f.broken == "");
}

TEST_CASE("what a worker did in an epoch says nothing of the next one") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(PauseJob{90, "tiny"});
  EndAll(f, 1);
  f.Step(ResumeJob{91, "tiny", "second secret"});
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  SECTION("it is paused before it has said more") {
    f.Step(PauseJob{92, "tiny"});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
    EndAll(f, 1, 2);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  }
  SECTION("another process of its agent has not heard of it yet") {
    f.Close(f.sessions["west"]);
    Return(f, "west", StateOf(v1::WORKER_PHASE_UNSPECIFIED, 0, 0, false), 2);
    f.RunFor(2 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  SECTION("a hello of before comes late") {
    f.Close(f.sessions["west"]);
    Return(f, "west", StateOf(v1::WORKER_PHASE_ENDED, 1, 1));
    f.Step(PauseJob{92, "tiny"});
    CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  }
  CHECK(f.broken == "");
}

TEST_CASE("a pause that is taken back before it came about begins the next epoch at once") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(PauseJob{90, "tiny"});
  f.Step(ResumeJob{91, "tiny", "second secret"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

TEST_CASE("a pause that is taken back and wanted again comes about, also while an agent is silent") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(PauseJob{90, "tiny"});
  f.Step(ResumeJob{91, "tiny", "second secret"});
  f.Close(f.sessions["west"]);
  f.Step(PauseJob{92, "tiny"});
  f.Step(ResumeJob{93, "tiny", "third secret"});
  f.Step(PauseJob{94, "tiny"});
  Return(f, "west", StateOf(v1::WORKER_PHASE_TRAINING, 1, 0));
  EndAll(f, 1);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  f.Step(ResumeJob{95, "tiny", "fourth secret"});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

TEST_CASE("a pause that is taken back goes on after a restart, too") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Step(PauseJob{90, "tiny"});
  before.Step(ResumeJob{91, "tiny", "second secret"});
  Federation f(NextLife(), before.Stored());
  ReturnAll(f, StateOf(v1::WORKER_PHASE_TRAINING, 1, 1));
  EndAll(f, 0);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
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
