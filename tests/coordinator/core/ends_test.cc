// Tests how jobs end and what stays of them: names that are used again, jobs that are to end with a checkpoint, what is
// asked for twice, and traces of an earlier life of the coordinator.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/moves.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

absl::Status ReplyOf(const Federation& f) { return f.Last<ReplyToCall>().at(0).reply.status(); }

template <class Response>
Response ResponseOf(const Federation& f) {
  REQUIRE(f.Last<ReplyToCall>().at(0).reply.ok());
  return std::get<Response>(*f.Last<ReplyToCall>().at(0).reply);
}

void Cancel(Federation& f, bool checkpoint = true) { f.Step(CancelJob{f.next_call++, "tiny", "enough", checkpoint}); }

// A job of nine iterations that is cancelled when three are told and the checkpoint before the third is complete.
Federation Cancelled() {
  Federation f = Made(0);
  RunSaved(f, false);
  Save(f, 1, 2);
  f.IterateAll(2);
  Cancel(f, false);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
  return f;
}

// Iterations and notices that watchers are told in the latest step.
struct Watched {
  std::vector<int64_t> iterations;
  std::vector<std::string> notices;
};
Watched WatchedIn(const Federation& f) {
  Watched watched;
  for (const SendToWatcher& send : f.Last<SendToWatcher>()) {
    for (const v1::WatchJobResponse& message : send.messages) {
      if (message.has_iteration()) {
        watched.iterations.push_back(message.iteration().iteration());
      } else if (message.has_notice()) {
        watched.notices.push_back(message.notice().text());
      }
    }
  }
  return watched;
}

TEST_CASE("a finished job's name is taken for nobody who does not ask for it, and for nothing that cannot begin") {
  Federation f = Cancelled();
  const auto refused = [&](const JobSpec& job, RunOptions run, bool replace) {
    f.Step(ApplyJob{f.next_call++, job, run, replace});
    const std::string words(ReplyOf(f).message());
    CHECK_FALSE(ReplyOf(f).ok());
    CHECK(f.Last<PersistNewJob>().empty());
    CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
    return words;
  };
  RunOptions resume;
  resume.resume = true;
  CHECK(refused(f.job, {}, false) ==
        "job tiny is CANCELLED with 3 iterations done, whose name this would take: go on from its checkpoint of "
        "iteration 2 with --resume, begin anew with --replace, which keeps that one as run 1, or give this one another "
        "name");
  CHECK(refused(f.job, {}, true) ==
        "checkpoint.path /ckpt has checkpoints of job tiny, the newest of iteration 2, and a job that begins anew does "
        "not write among them: go on from it with --resume, or give this one another checkpoint.path");
  JobSpec elsewhere = f.job;
  elsewhere.checkpoint.path = "/other";
  CHECK_THAT(
      refused(elsewhere, resume, false),
      Catch::EndsWith("begin anew with --replace, which keeps that one as run 1, or give this one another name"));
  JobSpec shorter = f.job;
  shorter.training.iterations = 2;
  CHECK(refused(shorter, resume, false) ==
        "job tiny is CANCELLED and has a checkpoint of iteration 2, and training ends at iteration 2: ask for more "
        "iterations to go on, or give this one another name");

  f.Step(ApplyJob{f.next_call++, elsewhere, {}, true});
  CHECK(ReplyOf(f).ok());
  CHECK(f.Last<PersistNewJob>().at(0).keep_below == 0);
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 0);
  CHECK(f.broken == "");
}

TEST_CASE("the name of a job that never did anything is free") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_PLANNING);
  Cancel(f, false);
  f.Step(ApplyJob{f.next_call++, f.job, {}});
  CHECK(ReplyOf(f).ok());
}

TEST_CASE("a job that goes on from a finished one keeps its iterations up to the checkpoint") {
  Federation f = Cancelled();
  bool restarted = false;
  SECTION("at once") {}
  SECTION("in another life of the coordinator, which has to read them") { restarted = true; }
  Federation next(NextLife(Federation::RecoveringOptions()), f.Stored());
  Federation& g = restarted ? next : f;
  g.job = f.job;
  if (restarted) {
    for (const std::string& site : g.sites) {
      g.Register(site, 2);
    }
  }
  FindListed(f);
  g.found = f.found;
  RunOptions resume;
  resume.resume = true;
  g.Step(ApplyJob{g.next_call++, g.job, resume});
  REQUIRE(g.Last<PersistNewJob>().size() == 1);
  CHECK(g.Last<PersistNewJob>()[0].keep_below == 2);
  if (restarted) {
    REQUIRE(g.Last<LoadIterations>().size() == 1);
    std::vector<v1::IterationSummary> stored(2);
    stored[1].set_iteration(1);
    g.Step(IterationsLoaded{"tiny", stored});
    g.finished["tiny"] = 2;
  } else {
    CHECK(g.Last<LoadIterations>().empty());
    g.finished["tiny"] = 2;
  }
  CHECK(g.DetailOf("tiny").summary().iterations_done() == 2);
  g.RunFor(kSecond / 10);
  g.Step(WatchStart{70, "tiny", 0, 1000});
  CHECK(WatchedIn(g).iterations == std::vector<int64_t>{0, 1});
  g.HelloAll();
  g.ProfileAll();
  g.PlanNow();
  REQUIRE(g.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  g.PrepareAll();
  CHECK(g.Last<SendToAgent>().at(0).message.command().command().commit().start_iteration() == 2);
  g.CommitAll();
  g.IterateAll(2);
  CHECK(WatchedIn(g).iterations == std::vector<int64_t>{2});
  g.Step(WatchStart{71, "tiny", 0, 1000});
  CHECK(WatchedIn(g).iterations == std::vector<int64_t>{0, 1, 2});
  CHECK(g.DetailOf("tiny").summary().iterations_done() == 3);
  CHECK(g.broken == "");
}

TEST_CASE("a job goes on from a checkpoint behind the last iteration in the store, whose rows have no gap") {
  Federation f = Cancelled();
  StoredState stored = f.Stored();
  StoredJob& old = stored.jobs.at(0);
  old.next_iteration = 1;  // the store took no progress for a while
  old.iterations.resize(1);
  FindListed(f);
  Federation g(NextLife(Federation::RecoveringOptions()), stored);
  g.job = f.job;
  g.found = f.found;
  for (const std::string& site : g.sites) {
    g.Register(site, 2);
  }
  RunOptions resume;
  resume.resume = true;
  g.Step(ApplyJob{g.next_call++, g.job, resume});
  g.HelloAll();
  g.ProfileAll();
  g.PlanNow();
  g.PrepareAll();
  g.CommitAll();
  g.finished["tiny"] = 2;
  g.IterateAll(2);
  g.RunFor(kSecond);
  CHECK(g.broken == "");
  const StoredState after = g.Stored();
  CHECK(after.jobs.back().next_iteration == 3);
  CHECK(after.jobs.back().iterations.front().iteration() == 2);
}

TEST_CASE("where it goes on from an older checkpoint, what came after that is no part of its curve") {
  Federation f = Cancelled();
  FindListed(f);
  f.found.pop_back();  // that of iteration 2 is gone
  RunOptions resume;
  resume.resume = true;
  f.Step(ApplyJob{f.next_call++, f.job, resume});
  f.finished["tiny"] = 1;
  f.RunFor(kSecond / 10);
  f.HelloAll();
  f.ProfileAll();
  f.PlanNow();
  REQUIRE(f.Last<PersistTransition>().size() == 1);
  REQUIRE(f.Last<PersistTransition>()[0].progress.has_value());
  CHECK(f.Last<PersistTransition>()[0].progress->begins_at == 1);
  f.PrepareAll();
  f.CommitAll();
  f.IterateAll(1);
  f.Step(WatchStart{71, "tiny", 0, 1000});
  CHECK(WatchedIn(f).iterations == std::vector<int64_t>{0, 1});
  CHECK(f.broken == "");
}

TEST_CASE("a job is cancelled with a checkpoint behind the iteration under way") {
  Federation f = Made(0);
  RunSaved(f, false);
  Cancel(f);
  CHECK(ResponseOf<v1::CancelJobResponse>(f).job().state() == v1::JOB_STATE_RUNNING);
  CHECK(f.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  bool restarted = false;
  SECTION("undisturbed") {}
  SECTION("with a restart in between") { restarted = true; }
  Federation next(NextLife(Federation::RecoveringOptions()), f.Stored());
  Federation& g = restarted ? next : f;
  g.job = f.job;
  if (restarted) {
    ReturnAll(g, StateOf(v1::WORKER_PHASE_TRAINING, 1, 2));
    g.Step(Tick{});
    CHECK(g.Commands(v1::WorkerCommand::kEndEpoch) == 3);
  }
  EndAll(g, 2);
  CHECK(g.Commands(v1::WorkerCommand::kCheckpoint) == 3);
  REQUIRE(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  g.RunFor(kSecond);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  Save(g, 1, 2);
  g.Step(Tick{});
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
  CHECK(g.CauseOf("tiny") == "enough; its state before iteration 2 is in a checkpoint");
  CHECK(ListedIn(g) == std::vector<int64_t>{1, 2});
  CHECK(g.broken == "");
}

TEST_CASE("a job that is to end with a checkpoint that cannot be written stays, and says so") {
  Federation f = Made(0);
  RunSaved(f, false);
  f.Step(WatchStart{70, "tiny", 0, 1000});
  Cancel(f);
  EndAll(f, 2);
  int orders = 0;
  std::vector<std::string> notices;
  for (int i = 0; i < 300; ++i) {
    const bool ordered = f.Commands(v1::WorkerCommand::kCheckpoint) == 3;
    std::ranges::copy(WatchedIn(f).notices, std::back_inserter(notices));
    if (ordered) {
      ++orders;
      FailToSave(f, 1, 2);
      std::ranges::copy(WatchedIn(f).notices, std::back_inserter(notices));
    }
    f.Advance(kSecond / 10);
    for (const SessionId session : std::set<SessionId>(f.open)) {
      f.Heartbeat(session);
    }
    f.Step(Tick{});
  }
  CHECK(orders == 5);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  REQUIRE(notices.size() == 2);
  CHECK_THAT(notices[0], Catch::Contains("No space left on device"));
  CHECK_THAT(notices[1], Catch::StartsWith("the job is not cancelled but stays PAUSED before iteration 2, for its "
                                           "checkpoint cannot be written: ") &&
                             Catch::Contains("No space left on device"));
  SECTION("it goes on when it is resumed") {
    f.Step(ResumeJob{f.next_call++, "tiny", "secret"});
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    f.PrepareAll();
    f.CommitAll();
    f.RunFor(kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  SECTION("it is cancelled without") {
    Cancel(f, false);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
    CHECK(f.CauseOf("tiny") == "enough");
  }
  CHECK(f.broken == "");
}

TEST_CASE("a last checkpoint needs a path, and is not waited for where nothing was done") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  Cancel(f);
  CHECK(ReplyOf(f).message() == "job tiny has no checkpoint.path to write a last checkpoint to; cancel it without one");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  Federation g = Made(0);
  g.DriveTo(v1::JOB_STATE_PLANNING);
  Cancel(g);
  CHECK(g.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
}

TEST_CASE("what is so already is no error") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(ResumeJob{f.next_call++, "tiny", "secret"});
  CHECK(ResponseOf<v1::ResumeJobResponse>(f).already());
  f.Step(PauseJob{f.next_call++, "tiny"});
  CHECK_FALSE(ResponseOf<v1::PauseJobResponse>(f).already());
  f.Step(PauseJob{f.next_call++, "tiny"});
  CHECK(ResponseOf<v1::PauseJobResponse>(f).already());
  CHECK(f.Last<PersistRecord>().empty());
  EndAll(f, 1);
  f.Step(PauseJob{f.next_call++, "tiny"});
  CHECK(ResponseOf<v1::PauseJobResponse>(f).already());
  f.Step(DrainSite{f.next_call++, "east"});
  CHECK_FALSE(ResponseOf<v1::DrainSiteResponse>(f).already());
  f.Step(DrainSite{f.next_call++, "east"});
  CHECK(ResponseOf<v1::DrainSiteResponse>(f).already());
  f.Step(UncordonSite{f.next_call++, "east"});
  CHECK_FALSE(ResponseOf<v1::UncordonSiteResponse>(f).already());
  f.Step(UncordonSite{f.next_call++, "east"});
  CHECK(ResponseOf<v1::UncordonSiteResponse>(f).already());
  CHECK(f.Last<PersistDrained>().empty());
  Cancel(f, false);
  CHECK_FALSE(ResponseOf<v1::CancelJobResponse>(f).already());
  Cancel(f, false);
  CHECK(ResponseOf<v1::CancelJobResponse>(f).already());
  CHECK(f.Last<PersistTransition>().empty());
  // Asking for what cannot be is an error.
  f.Step(PauseJob{f.next_call++, "tiny"});
  CHECK(ReplyOf(f).message() == "job tiny is CANCELLED; only a job that is RUNNING can be paused");
  f.Step(ResumeJob{f.next_call++, "tiny", "secret"});
  CHECK(ReplyOf(f).message() == "job tiny is CANCELLED, not paused");
}

TEST_CASE("a job that loses workers without finishing an iteration says so from the third loss on, whoever it was") {
  Federation f(Federation::RecoveringOptions());
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  f.Step(WatchStart{70, "tiny", 0, 1000});
  const std::vector<std::string> victims{"west", "north", "east"};
  for (size_t loss = 0; loss < victims.size(); ++loss) {
    INFO("loss " << loss);
    const uint64_t epoch = loss + 1;
    f.Exit(DeviceAt(victims[loss]), 9);
    CHECK(f.DetailOf("tiny").summary().losses() == static_cast<int32_t>(loss) + 1);
    if (loss < 2) {
      CHECK(WatchedIn(f).notices.empty());
      CHECK(f.DetailOf("tiny").summary().trouble().empty());
    }
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    if (loss == 2) {
      break;
    }
    for (size_t rank = 0; rank < f.sites.size(); ++rank) {
      if (f.sites[rank] != victims[loss]) {
        f.Answer(f.sites[rank], EndedReportOf(static_cast<int32_t>(rank), epoch, 1));
      }
    }
    f.RunFor(3 * kSecond);
    v1::WorkerReport hello = HelloReport();
    AddState(hello.mutable_hello()->mutable_status()->mutable_states(), 1, loss == 0 ? 1 : epoch);
    f.Answer(victims[loss], hello);
    f.RunFor(kSecond);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
    f.PrepareAll();
    f.CommitAll();
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }
  const std::string words =
      "the job has lost workers 3 times without finishing an iteration; last: worker east/n0/0 (site east, pid 100) "
      "was "
      "killed by signal 9 (SIGKILL)";
  REQUIRE(WatchedIn(f).notices.size() == 1);
  CHECK_THAT(WatchedIn(f).notices[0], Catch::StartsWith(words));
  CHECK_THAT(f.DetailOf("tiny").summary().trouble(),
             Catch::StartsWith("it has lost workers 3 times without finishing an iteration, last: worker east/n0/0"));
  // A watcher who begins now is told, too.
  f.Step(WatchStart{71, "tiny", 0, 1000});
  CHECK(WatchedIn(f).notices.size() == 1);
  // The count of losses is durable.
  Federation g(NextLife(Federation::RecoveringOptions()), f.Stored());
  CHECK(g.DetailOf("tiny").summary().losses() == 3);
  CHECK(f.broken == "");
}

TEST_CASE("an iteration that is finished ends the count of losses") {
  Federation f = Made(0);
  RunSaved(f, false);
  f.Exit(DeviceAt("west"), 9);
  CHECK(f.DetailOf("tiny").summary().losses() == 1);
  f.Answer("north", EndedReportOf(0, 1, 2));
  f.Answer("east", EndedReportOf(1, 1, 2));
  v1::WorkerReport hello = HelloReport();
  AddState(hello.mutable_hello()->mutable_status()->mutable_states(), 2, 1);
  f.Answer("west", hello);
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  CHECK(f.DetailOf("tiny").summary().losses() == 1);
  f.IterateAll(2);
  CHECK(f.DetailOf("tiny").summary().losses() == 0);
}

TEST_CASE("checkpoints that come to nothing are told of once, and once when they are written again") {
  Federation f = Made(0);
  RunSaved(f, false);
  f.Step(WatchStart{70, "tiny", 0, 1000});
  FailToSave(f, 1, 2);
  REQUIRE(WatchedIn(f).notices.size() == 1);
  CHECK_THAT(WatchedIn(f).notices[0], Catch::Contains("No space left on device"));
  CHECK(f.DetailOf("tiny").summary().trouble() == WatchedIn(f).notices[0]);
  f.Step(ListJobs{f.next_call++});
  CHECK_THAT(ResponseOf<v1::ListJobsResponse>(f).jobs(0).trouble(), Catch::Contains("No space left on device"));
  f.IterateAll(2);
  FailToSave(f, 1, 3);
  CHECK(WatchedIn(f).notices.empty());
  f.IterateAll(3);
  Save(f, 1, 4);
  CHECK(WatchedIn(f).notices ==
        std::vector<std::string>{"checkpoints are written again: that of iteration 4 is complete"});
  CHECK(f.DetailOf("tiny").summary().trouble().empty());
  CHECK(f.broken == "");
}

TEST_CASE("a job whose training is over says every ten seconds what it waits for") {
  Federation f = Made(0);
  f.job.training.iterations = 2;
  RunSaved(f, false);
  f.Step(WatchStart{70, "tiny", 0, 1000});
  for (int32_t rank = 0; rank < 3; ++rank) {
    f.Answer(f.sites[static_cast<size_t>(rank)], FinishedReportOf(rank, 1, 2));
  }
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  FailToSave(f, 1, 2);
  std::vector<std::string> notices;
  for (int i = 0; i < 310; ++i) {
    f.RunFor(kSecond / 10);
    std::ranges::copy(WatchedIn(f).notices, std::back_inserter(notices));
    if (f.Commands(v1::WorkerCommand::kCheckpoint) == 3) {
      FailToSave(f, 1, 2);
    }
  }
  REQUIRE(notices.size() == 3);
  for (const std::string& notice : notices) {
    CHECK_THAT(notice, Catch::StartsWith("all iterations are done; the last state ") && Catch::Contains("written"));
  }
  for (int i = 0; i < 200 && f.Commands(v1::WorkerCommand::kCheckpoint) != 3; ++i) {
    f.RunFor(kSecond / 10);
  }
  Save(f, 1, 2);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_COMPLETED);
  CHECK(f.broken == "");
}

TEST_CASE("a job that runs without the words of some agent says of which") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  CHECK(f.DetailOf("tiny").summary().trouble().empty());
  f.Close(f.sessions["west"]);
  f.RunFor(kSecond);
  CHECK(f.DetailOf("tiny").summary().trouble() ==
        "agent west/n0 cannot be heard; workers there go on by themselves meanwhile");
}

TEST_CASE("a trace that this life of the coordinator has not is read from the store") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.Step(GetTrace{90, "tiny"});
  REQUIRE(f.Last<LoadTimelines>().size() == 1);
  CHECK(f.Last<LoadTimelines>()[0].call == 90);
  CHECK(f.Last<ReplyToCall>().empty());
  f.Step(TimelinesLoaded{"tiny", 90, std::vector<v1::IterationTimeline>{}});
  CHECK(ReplyOf(f).message() == "there are no timelines of job tiny: its first iteration is not complete");
  f.IterateAll(0);
  f.Step(GetTrace{91, "tiny"});
  std::vector<v1::IterationTimeline> stored(1);
  stored[0].set_iteration(5);
  f.Step(TimelinesLoaded{"tiny", 91, stored});
  CHECK(ResponseOf<v1::GetTraceResponse>(f).iterations(0).iteration() == 5);
  f.Step(TimelinesLoaded{"tiny", 92, absl::DataLossError("damaged")});
  CHECK(ReplyOf(f) == absl::InternalError("damaged"));
}

}  // namespace
}  // namespace geopipe
