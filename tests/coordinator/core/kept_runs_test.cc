// Tests what stays of a job whose name is applied again: numbers, lists, curves and limits of earlier runs.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/moves.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

absl::Status ReplyOf(const Federation& f) { return f.Last<ReplyToCall>().at(0).reply.status(); }

// "name run state" of each job that is listed.
std::vector<std::string> Listed(Federation& f, bool all) {
  f.Step(ListJobs{f.next_call++, all});
  std::vector<std::string> listed;
  const auto reply = f.Last<ReplyToCall>().at(0).reply;
  for (const v1::JobSummary& job : std::get<v1::ListJobsResponse>(*reply).jobs()) {
    listed.push_back(fmt::format("{} {} {}", job.name(), job.run(), JobStateName(job.state())));
  }
  return listed;
}

absl::StatusOr<v1::JobDetail> RunOf(Federation& f, int64_t run, const std::string& name = "tiny") {
  f.Step(GetJob{{{{f.next_call++}, name}, run}});
  const auto reply = f.Last<ReplyToCall>().at(0).reply;
  return reply.ok() ? absl::StatusOr<v1::JobDetail>(std::get<v1::GetJobResponse>(*reply).job()) : reply.status();
}

PersistNewJob Apply(Federation& f, const std::string& name = "tiny", bool resume = false) {
  JobSpec job = f.job;
  job.name = name;
  RunOptions run;
  run.resume = resume;
  f.Step(ApplyJob{f.next_call++, job, run, !resume});
  REQUIRE(ReplyOf(f).ok());
  return f.Last<PersistNewJob>().at(0);
}

void Cancel(Federation& f, const std::string& name = "tiny") { f.Step(CancelJob{f.next_call++, name, "enough"}); }

// Iterations that a watcher of the run is told in the latest step.
std::vector<int64_t> Told(const Federation& f) {
  std::vector<int64_t> told;
  for (const SendToWatcher& send : f.Last<SendToWatcher>()) {
    for (const v1::WatchJobResponse& message : send.messages) {
      if (message.has_iteration()) {
        told.push_back(message.iteration().iteration());
      }
    }
  }
  return told;
}

std::vector<v1::IterationSummary> Iterations(int64_t count) {
  std::vector<v1::IterationSummary> iterations(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    iterations[static_cast<size_t>(i)].set_iteration(i);
  }
  return iterations;
}

TEST_CASE("jobs of one name are numbered, and an earlier one is shown as it was for ever") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_COMPLETED);
  const v1::JobDetail first = f.DetailOf("tiny");
  REQUIRE(first.summary().run() == 1);
  const PersistNewJob second = Apply(f);
  CHECK(second.keep_as == "tiny@1");
  CHECK(second.detail.summary().run() == 2);
  CHECK(second.forget.empty());
  Cancel(f);
  CHECK(Apply(f).keep_as == "tiny@2");
  f.RunFor(kSecond);

  Federation next(NextLife(), f.Stored());
  const bool restarted = GENERATE(false, true);
  Federation& g = restarted ? next : f;
  CHECK(Listed(g, false) == std::vector<std::string>{"tiny 3 PROFILING"});
  CHECK(Listed(g, true) == std::vector<std::string>{"tiny 1 COMPLETED", "tiny 2 CANCELLED", "tiny 3 PROFILING"});
  CHECK(RunOf(g, 1)->SerializeAsString() == first.SerializeAsString());
  CHECK(RunOf(g, 2)->summary().cause() == "enough");
  CHECK(RunOf(g, 3)->SerializeAsString() == g.DetailOf("tiny").SerializeAsString());
  CHECK(RunOf(g, 4).status() ==
        absl::NotFoundError("there is no run 4 of job \"tiny\", or it is kept no more; `geopipectl get jobs --all` "
                            "lists those that are"));
  CHECK(absl::IsNotFound(RunOf(g, -1).status()));

  // No client has a name for it, and no request of any kind changes it.
  CHECK(absl::IsNotFound(RunOf(g, 0, "tiny@1").status()));
  CHECK(absl::IsNotFound(RunOf(g, 1, "tiny@1").status()));
  Cancel(g, "tiny@2");
  CHECK(absl::IsNotFound(ReplyOf(g)));
  CHECK(RunOf(g, 1)->SerializeAsString() == first.SerializeAsString());
  CHECK(f.broken + g.broken == "");
}

TEST_CASE("the curve and the timelines of an earlier run are there, from memory or from the store") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_COMPLETED);
  Apply(f);
  f.Step(WatchStart{70, "tiny", 0, 1000, 1});
  CHECK(Told(f) == std::vector<int64_t>{0, 1, 2});
  REQUIRE(f.Last<EndWatch>().size() == 1);
  CHECK(f.Last<EndWatch>()[0].status.ok());

  Federation g(NextLife(), f.Stored());
  g.Step(WatchStart{71, "tiny", 0, 1000, 1});
  REQUIRE(g.Last<LoadIterations>().size() == 1);
  CHECK(g.Last<LoadIterations>()[0].job == "tiny@1");
  g.Step(IterationsLoaded{"tiny@1", Iterations(3)});
  CHECK(Told(g) == std::vector<int64_t>{0, 1, 2});
  CHECK(g.Last<EndWatch>().size() == 1);
  g.Step(GetTrace{{{{90}, "tiny"}, 1}});
  REQUIRE(g.Last<LoadTimelines>().size() == 1);
  CHECK(g.Last<LoadTimelines>()[0].job == "tiny@1");
  g.Step(TimelinesLoaded{"tiny@1", 90, std::vector<v1::IterationTimeline>(1)});
  const auto reply = g.Last<ReplyToCall>().at(0).reply;
  REQUIRE(reply.ok());
  CHECK(std::get<v1::GetTraceResponse>(*reply).job().summary().name() == "tiny");
  g.Step(TimelinesLoaded{"tiny@1", 91, std::vector<v1::IterationTimeline>()});
  CHECK_THAT(std::string(ReplyOf(g).message()), Catch::StartsWith("there are no timelines of run 1 of job tiny: "));
}

TEST_CASE("a job that goes on from an earlier run leaves that run its whole curve") {
  Federation f = Made(0);
  RunSaved(f, false);
  Save(f, 1, 2);
  f.IterateAll(2);
  Cancel(f);
  const v1::JobDetail first = f.DetailOf("tiny");
  FindListed(f);
  const PersistNewJob second = Apply(f, "tiny", true);
  CHECK(second.keep_below == 2);
  CHECK(second.keep_as == "tiny@1");
  CHECK(RunOf(f, 1)->SerializeAsString() == first.SerializeAsString());
  CHECK(RunOf(f, 0)->summary().iterations_done() == 2);
  CHECK(RunOf(f, 0)->checkpoints().empty());
  f.Step(WatchStart{70, "tiny", 0, 1000, 1});
  CHECK(Told(f) == std::vector<int64_t>{0, 1, 2});
  f.Step(WatchStart{71, "tiny", 0, 1000});
  CHECK(Told(f) == std::vector<int64_t>{0, 1});

  // It goes on, and the run before stays as it was; then the next one goes on from it, not from the first.
  f.finished["tiny"] = 2;
  f.RunFor(kSecond / 10);
  f.HelloAll();
  f.ProfileAll();
  f.PlanNow();
  f.PrepareAll();
  f.CommitAll();
  f.IterateAll(2);
  Cancel(f);
  CHECK(RunOf(f, 1)->SerializeAsString() == first.SerializeAsString());
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
  CHECK(f.broken == "");
}

TEST_CASE("a job that is not over is not replaced, and one that failed is kept with its cause") {
  Federation f;
  f.Step(ApplyJob{f.next_call++, f.job, {}});
  f.Step(ApplyJob{f.next_call++, f.job, {}, true});
  CHECK(absl::IsAlreadyExists(ReplyOf(f)));
  CHECK(Listed(f, true) == std::vector<std::string>{"tiny 1 PENDING"});
  Cancel(f);

  f.DriveTo(v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.Answer("east", FailureReportOf(absl::StatusCode::kInvalidArgument, "no such data"));
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_FAILED);
  const std::string cause = f.CauseOf("tiny");
  Apply(f);
  CHECK(RunOf(f, 1)->summary().state() == v1::JOB_STATE_CANCELLED);
  CHECK(RunOf(f, 2)->summary().state() == v1::JOB_STATE_FAILED);
  CHECK(RunOf(f, 2)->summary().cause() == cause);
}

TEST_CASE("a job that cannot be stored leaves the one of its name, earlier runs and watches as they were") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_COMPLETED);
  Apply(f);
  Cancel(f);
  f.Step(WatchStart{80, "tiny", 0, 1});  // room for one message: it stays open
  f.refuses_jobs = true;
  f.Step(ApplyJob{90, f.job, {}, true});
  CHECK(std::holds_alternative<PersistNewJob>(f.last.front()));  // what is behind it is given up
  f.Step(PersistFailed{"tiny", 90, absl::ResourceExhaustedError("disk full")});
  CHECK(Listed(f, true) == std::vector<std::string>{"tiny 1 COMPLETED", "tiny 2 CANCELLED"});
  f.Step(WatchMore{80, 100});
  CHECK_FALSE(f.Last<SendToWatcher>().empty());
  f.refuses_jobs = false;
  CHECK(Apply(f).keep_as == "tiny@2");
}

TEST_CASE("of a name so many earlier runs are kept, and numbers go on") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.max_kept_runs = 2;
  Federation f(options);
  std::vector<std::string> forgotten;
  for (int i = 0; i < 5; ++i) {
    forgotten.push_back(Apply(f).forget);
    Cancel(f);
  }
  CHECK(forgotten == std::vector<std::string>{"", "", "", "tiny@1", "tiny@2"});
  const std::vector<std::string> kept{"tiny 3 CANCELLED", "tiny 4 CANCELLED", "tiny 5 CANCELLED"};
  CHECK(Listed(f, true) == kept);
  Federation g(NextLife(options), f.Stored());
  CHECK(Listed(g, true) == kept);
  CHECK(Apply(g).detail.summary().run() == 6);
}

TEST_CASE("earlier runs are finished jobs, of which the oldest makes room, whoever's it is") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.max_jobs = 4;
  options.max_finished_jobs = 2;
  Federation f(options);
  const auto end = [&](const std::string& name) {
    const PersistNewJob stored = Apply(f, name);
    Cancel(f, name);
    return std::pair(stored.forget, stored.keep_as);
  };
  using Fate = std::pair<std::string, std::string>;
  CHECK(end("tiny") == Fate("", ""));
  CHECK(end("tiny") == Fate("", "tiny@1"));
  CHECK(end("other") == Fate("tiny@1", ""));
  CHECK(end("other") == Fate("tiny", "other@1"));
  CHECK(Listed(f, true) == std::vector<std::string>{"other 1 CANCELLED", "other 2 CANCELLED"});
  CHECK(end("tiny") == Fate("other@1", ""));  // a name that is not known any more begins anew
  CHECK(Listed(f, true) == std::vector<std::string>{"other 2 CANCELLED", "tiny 1 CANCELLED"});
  // The oldest of all is the one whose name is taken: nothing of it is kept.
  CHECK(end("other") == Fate("", ""));
  CHECK(Listed(f, true) == std::vector<std::string>{"tiny 1 CANCELLED", "other 3 CANCELLED"});
}

TEST_CASE("a row that is damaged is told as an earlier run, or gives its place, and no number comes twice") {
  StoredJob first;
  first.damaged = true;
  first.detail.mutable_summary()->set_name("tiny@4");
  first.detail.mutable_summary()->set_state(v1::JOB_STATE_COMPLETED);
  StoredJob unlikely = first;  // it cannot go on, whatever its row says
  unlikely.damaged = false;
  unlikely.detail.mutable_summary()->set_name("tiny@5");
  unlikely.detail.mutable_summary()->set_state(v1::JOB_STATE_RUNNING);
  StoredJob latest = first;
  latest.detail.mutable_summary()->set_name("tiny");
  Federation f(Federation::DefaultOptions(), {.jobs = {first, unlikely, latest}, .links = {}, .drained_sites = {}});
  CHECK(Listed(f, true) == std::vector<std::string>{"tiny 4 FAILED", "tiny 5 FAILED", "tiny 6 FAILED"});
  CHECK(RunOf(f, 4)->summary().cause() ==
        "its row in the job store is damaged: restore a backup of the store (docs/operating.md)");
  CHECK_THAT(RunOf(f, 6)->summary().cause(), Catch::EndsWith(", or apply it again"));
  const PersistNewJob stored = Apply(f);
  CHECK(stored.keep_as.empty());
  CHECK(stored.forget.empty());
  CHECK(stored.detail.summary().run() == 7);
  CHECK(Listed(f, true) == std::vector<std::string>{"tiny 4 FAILED", "tiny 5 FAILED", "tiny 7 PENDING"});
}

TEST_CASE("a job out of a store of before runs were numbered is the first of its name") {
  Federation f;
  f.DriveTo(v1::JOB_STATE_COMPLETED);
  StoredState state = f.Stored();
  state.jobs[0].detail.mutable_summary()->clear_run();
  Federation g(NextLife(), state);
  CHECK(Listed(g, false) == std::vector<std::string>{"tiny 1 COMPLETED"});
  CHECK(Apply(g).keep_as == "tiny@1");
}

TEST_CASE("a kept name tells name and run") {
  CHECK(KeptName("tiny", 12) == "tiny@12");
  CHECK(IsKeptName("tiny@12"));
  CHECK_FALSE(IsKeptName("tiny"));
  CHECK(RunNameOf("tiny@12").name == "tiny");
  CHECK(RunNameOf("tiny@12").run == 12);
  CHECK(RunNameOf("tiny").run == 0);
  CHECK_FALSE(IsJobName("tiny@12"));
  CHECK(DisplayName(RunNameOf("tiny@12")) == "run 12 of job tiny");
  CHECK(DisplayName(RunNameOf("tiny")) == "job tiny");
}

}  // namespace
}  // namespace geopipe
