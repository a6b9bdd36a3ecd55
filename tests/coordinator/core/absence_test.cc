// Not to know a run is no knowledge that it is over: a coordinator with a lost, foreign or older store stops nobody.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/moves.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

v1::ListSitesResponse SitesIn(Federation& f) {
  f.Step(ListSites{f.next_call++});
  return std::get<v1::ListSitesResponse>(*f.Last<ReplyToCall>().at(0).reply);
}

// A job trains at three sites, and a coordinator that knows nothing of it follows.
Federation Forgetful(Federation& before) {
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.IterateAll(0);
  Federation f(NextLife(), {});
  for (const std::string& site : before.sites) {
    f.Register(site, 1, {before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 1)});
    CHECK(f.Stops() == 0);
  }
  return f;
}

TEST_CASE("a coordinator with an empty store leaves the workers that it does not know alone, and says so") {
  Federation before;
  Federation f = Forgetful(before);
  f.RunFor(60 * kSecond);
  CHECK(f.Stops() == 0);
  const v1::ListSitesResponse sites = SitesIn(f);
  REQUIRE(sites.sites_size() == 3);
  REQUIRE(sites.sites(2).nodes(0).strays_size() == 1);
  const v1::StrayWorker& stray = sites.sites(2).nodes(0).strays(0);
  CHECK(stray.job() == "tiny");
  CHECK(stray.age_ns() >= 60 * kSecond);
  CHECK(stray.stopped_in_ns() == 3600 * kSecond - stray.age_ns());
  // Their devices are given to nobody.
  f.job.name = "other";
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  f.RunFor(kSecond);
  CHECK(f.StateOf("other") == v1::JOB_STATE_PENDING);
  CHECK_THAT(f.CauseOf("other"), Catch::Contains("tiny (unknown here; its worker"));
  CHECK(f.broken == "");
}

TEST_CASE("a worker that nobody has known for an hour is stopped, and keeps its state for who may yet come") {
  Federation before;
  Federation f = Forgetful(before);
  f.RunFor(3590 * kSecond);
  CHECK(f.Stops() == 0);
  int stops = 0;
  for (int i = 0; i < 200; ++i) {
    f.RunFor(kSecond / 10);
    stops += f.Stops();
  }
  CHECK(stops == 3);
  f.Step(Tick{});
  CHECK(f.Stops() == 0);
}

TEST_CASE("a worker that nobody knows is stopped when somebody says so") {
  Federation before;
  Federation f = Forgetful(before);
  f.Step(StopStray{{{f.next_call++}, "west"}, "n0"});
  CHECK(f.Stops() == 1);
  CHECK(std::get<v1::StopStrayResponse>(*f.Last<ReplyToCall>().at(0).reply).strays_size() == 1);
  CHECK(SitesIn(f).sites(2).nodes(0).strays_size() == 0);
  f.Step(StopStray{{{f.next_call++}, "west"}, "n0"});
  CHECK(f.Last<ReplyToCall>().at(0).reply.status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a worker that nobody knows and whose agent has come back without it holds its device until it has ended") {
  Federation before;
  Federation f = Forgetful(before);
  f.Close(f.sessions["west"]);
  f.Register("west", 2);
  f.Step(StopStray{{{f.next_call++}, "north"}, "n0"});
  f.Step(StopStray{{{f.next_call++}, "east"}, "n0"});
  f.Step(StopStray{{{f.next_call++}, "west"}, "n0"});
  CHECK(f.Stops() == 0);  // there is nobody to tell
  f.job.name = "other";
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  f.RunFor(50 * kSecond);
  CHECK_THAT(f.CauseOf("other"), Catch::Contains("its worker west/n0/0 is not known to have ended"));
  f.RunFor(20 * kSecond);
  CHECK(f.StateOf("other") == v1::JOB_STATE_PROFILING);
}

TEST_CASE("a worker of a run that is known to be over is stopped at once, also by another life of the coordinator") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Step(CancelJob{{{before.next_call++}, "tiny"}, "enough"});
  REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
  const bool restarted = GENERATE(false, true);
  if (const bool again = GENERATE(false, true); again) {  // a job of that name that has not begun
    before.job.placement.sites = {"south"};
    before.Step(ApplyJob{before.next_call++, before.job, before.run});
    REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_PENDING);
  }
  Federation next(NextLife(), before.Stored());
  Federation& f = restarted ? next : before;
  before.Close(before.sessions["west"]);
  f.Register("west", 2, {before.IdOf(DeviceAt("west"))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 1)});
  CHECK(f.Stops() == 1);
  CHECK(SitesIn(f).sites(restarted ? 0 : 2).nodes(0).strays_size() == 0);
}

TEST_CASE("an agent whose workers belong to another federation is refused, and one without workers is not") {
  CoordinatorOptions options = Federation::DefaultOptions();
  options.federation = "b";
  Federation f(options);
  f.known_federation = GENERATE(std::string("a"), std::string("b"), std::string(""));
  const bool has_workers = GENERATE(false, true);
  const std::vector<v1::WorkerId> workers{MakeWorkerId(DeviceAt("west"), "tiny", 7)};
  const SessionId session = f.Register("west", 1, has_workers ? workers : std::vector<v1::WorkerId>());
  const bool is_refused = f.known_federation == "a" && has_workers;
  const std::vector<CloseSession> closed = f.Last<CloseSession>();
  REQUIRE(closed.size() == (is_refused ? 1 : 0));
  CHECK(SitesIn(f).sites_size() == (is_refused ? 0 : 1));
  CHECK(SitesIn(f).refused_size() == (is_refused ? 1 : 0));
  if (is_refused) {
    CHECK(closed[0].session == session);
    CHECK(closed[0].status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(SitesIn(f).refused(0).why(),
               Catch::StartsWith("agent west/n0 has 1 worker of federation a, and this coordinator's job store is of "
                                 "federation b: they go on by themselves; give"));
    f.RunFor(61 * kSecond);
    CHECK(SitesIn(f).refused_size() == 0);
  }
}

// A job of which the store has the state of its first epoch, with two iterations, while it trains in its second.
struct Outrun {
  Federation before{Federation::RecoveringOptions()};
  StoredState older;

  explicit Outrun(bool saves) {
    if (saves) {
      before.job.checkpoint = {.path = "/ckpt", .every = 1, .keep = 5};
    }
    before.job.training.iterations = 9;
    before.DriveTo(v1::JOB_STATE_RUNNING);
    before.IterateAll(0);
    if (saves) {
      Save(before, 1, 1);
    }
    before.IterateAll(1);
    older = before.Stored();
    Lose("west", 1);
  }

  // A worker is lost after an iteration of the epoch or two, and another takes its place in the next one.
  void Lose(const std::string& site, uint64_t epoch) {
    const auto next = static_cast<int64_t>(epoch) + 1;
    before.Exit(DeviceAt(site), 9);
    for (size_t rank = 0; rank < before.sites.size(); ++rank) {
      if (before.sites[rank] != site) {
        before.Answer(before.sites[rank], EndedReportOf(static_cast<int32_t>(rank), epoch, next));
      }
    }
    v1::WorkerReport hello = HelloReport();
    hello.mutable_hello()->mutable_status()->set_phase(v1::WORKER_PHASE_IDLE);
    AddState(hello.mutable_hello()->mutable_status()->mutable_states(), next, epoch);
    before.Answer(site, hello);
    before.PrepareAll();
    before.CommitAll();
    before.IterateAll(next);
    REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  }

  // The agents return to a coordinator with the older store; its job is paused when their workers have ended.
  // `keeps`: they still have a state from before any iteration that the store knows.
  Federation Paused(uint64_t epoch = 2, bool keeps = false) {
    const auto next = static_cast<int64_t>(epoch) + 2;
    Federation f(NextLife(Federation::RecoveringOptions()), older);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
    int stops = 0;
    for (const std::string& site : f.sites) {
      f.Register(site, 1, {before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, epoch, next)});
      stops += f.Stops();
    }
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
    for (size_t rank = 0; rank < f.sites.size(); ++rank) {
      v1::WorkerReport ended = EndedReportOf(static_cast<int32_t>(rank), epoch, next);
      if (keeps) {
        AddState(ended.mutable_ended()->mutable_states(), 0, 1);
      }
      SessionReport(f, f.sites[rank], ended);
      stops += f.Stops();
    }
    CHECK(stops == 0);
    f.RunFor(kSecond);
    REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);
    return f;
  }

  // A report of the worker that the agent has.
  void SessionReport(Federation& f, const std::string& site, const v1::WorkerReport& report) const {
    AgentMessage event{f.sessions[site], {}};
    event.message.set_incarnation(1);
    v1::RelayedReport& relayed = *f.AddReport(event).mutable_worker();
    *relayed.mutable_worker() = before.IdOf(DeviceAt(site));
    *relayed.mutable_report() = report;
    f.Step(std::move(event));
  }
};

TEST_CASE("a store that is older than a run pauses the run, and people choose where it goes on from") {
  const bool saves = GENERATE(false, true);
  Outrun outrun(saves);
  Federation f = outrun.Paused();
  CHECK(f.CauseOf("tiny") ==
        std::string("paused before iteration 4, for the job store was older than this run: `geopipectl resume tiny "
                    "--from newest` goes on from there, `--from store` ") +
            (saves ? "from the checkpoint of iteration 1" : "begins anew"));
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret"});
  const absl::Status refused = f.Last<ReplyToCall>().at(0).reply.status();
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.message()),
             Catch::StartsWith("job tiny is paused before iteration 4, for the job store"));
  const bool from_store = GENERATE(false, true);
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", from_store ? v1::RESUME_FROM_STORE : v1::RESUME_FROM_NEWEST});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);  // figures that the store does not know may still come
  f.RunFor(2 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  const v1::JobDetail detail = f.DetailOf("tiny");
  CHECK(detail.summary().epoch() == 3);  // no number is used twice
  CHECK(detail.epochs().rbegin()->first_iteration() == (!from_store ? 4 : saves ? 1 : 0));
  CHECK(f.broken == "");
}

TEST_CASE("a job that people let go on with the newest state begins where it was paused, with or without its figures") {
  Outrun outrun(false);
  Federation f = outrun.Paused(2, true);
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_NEWEST});
  f.RunFor(2 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs().rbegin()->first_iteration() == 4);
}

// An agent that was started again as well does not know how far its worker is before that has spoken.
TEST_CASE("a store that is older than a run is noticed by what its workers say, too") {
  Outrun outrun(false);
  Federation f(NextLife(Federation::RecoveringOptions()), outrun.older);
  f.Register("north", 1, {outrun.before.IdOf(DeviceAt("north"))});
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  v1::WorkerReport report;
  SECTION("a heartbeat") {
    *report.mutable_heartbeat()->mutable_status() = StateOf(v1::WORKER_PHASE_TRAINING, 2, 3).status();
  }
  SECTION("the figures of an iteration") { report = IterationReportOf(0, 2, 2); }
  outrun.SessionReport(f, "north", report);
  CHECK(f.Stops() == 0);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  CHECK(f.DetailOf("tiny").recoveries(0).kind() == "outrun");
}

TEST_CASE("figures of a later epoch than an older store knows count before any status tells of it") {
  Outrun outrun(false);
  Federation f(NextLife(Federation::RecoveringOptions()), outrun.older);
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    const std::string& site = f.sites[rank];
    const v1::WorkerState state = rank == 0 ? v1::WorkerState() : StateOf(v1::WORKER_PHASE_TRAINING, 2, 3);
    f.Register(site, 1, {outrun.before.IdOf(DeviceAt(site))}, 1, {state});
    for (int64_t iteration = 0; iteration < 3; ++iteration) {
      outrun.SessionReport(f, site, IterationReportOf(static_cast<int32_t>(rank), 2, iteration));
    }
  }
  CHECK(f.DetailOf("tiny").summary().iterations_done() == 3);
}

TEST_CASE("a job that an older store's coordinator begins again uses no number of an epoch that it has heard of") {
  Outrun outrun(false);
  Federation f(NextLife(Federation::RecoveringOptions()), outrun.older);
  f.Register("north", 1, {outrun.before.IdOf(DeviceAt("north"))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 2, 3)});
  v1::WorkerState later = StateOf(v1::WORKER_PHASE_TRAINING, 1, 3);
  later.mutable_status()->set_run_incarnation(Federation::kRun + 10);
  f.Register("east", 1, {MakeWorkerId(DeviceAt("east"), "tiny", Federation::kRun + 11)}, 1, {later});
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK(f.DetailOf("tiny").summary().epoch() == 2);
}

// Numbers of workers ascend, and the agent that returns first may have the youngest.
TEST_CASE("all workers that took the place of others since the store was stored are known for what they are") {
  Outrun outrun(true);
  outrun.Lose("north", 2);
  REQUIRE(outrun.before.IdOf(DeviceAt("north")).incarnation() > outrun.before.IdOf(DeviceAt("west")).incarnation());
  Federation f = outrun.Paused(3);
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_NEWEST});
  f.RunFor(2 * kSecond);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(f.DetailOf("tiny").epochs().rbegin()->first_iteration() == 5);
  CHECK(f.broken == "");
}

TEST_CASE("the choice is there after another restart, too") {
  Outrun outrun(false);
  Federation f = outrun.Paused();
  const std::string cause = f.CauseOf("tiny");
  Federation next(NextLife(NextLife(Federation::RecoveringOptions())), f.Stored());
  for (const std::string& site : next.sites) {
    next.Register(site, 1, {outrun.before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 2, 4)});
  }
  next.RunFor(kSecond);
  CHECK(next.StateOf("tiny") == v1::JOB_STATE_PAUSED);
  CHECK(next.CauseOf("tiny") == cause);
  next.Step(ResumeJob{{{next.next_call++}, "tiny"}, "secret"});
  CHECK(next.Last<ReplyToCall>().at(0).reply.status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("the choice of what the store knows outlives the coordinator that was told") {
  Outrun outrun(true);
  Federation f = outrun.Paused();
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_STORE});
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PAUSED);  // figures may still come
  Federation next(NextLife(NextLife(Federation::RecoveringOptions())), f.Stored());
  for (const std::string& site : next.sites) {
    next.Register(site, 1, {outrun.before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_ENDED, 2, 4)});
  }
  next.RunFor(3 * kSecond);
  REQUIRE(next.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
  CHECK(next.DetailOf("tiny").epochs().rbegin()->first_iteration() == 1);
}

TEST_CASE("a store from before a job's run leaves its workers alone, and the job waits until people choose") {
  Federation before;
  before.Step(ApplyJob{before.next_call++, before.job, before.run});
  const StoredState older = before.Stored();
  for (const std::string& site : before.sites) {
    before.Register(site);
  }
  before.HelloAll();
  before.ProfileAll();
  before.PlanNow();
  before.PrepareAll();
  before.CommitAll();
  REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_RUNNING);
  Federation f(NextLife(), older);
  for (const std::string& site : f.sites) {
    f.Register(site, 1, {before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 1)});
    CHECK(f.Stops() == 0);
  }
  f.RunFor(10 * kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK(f.CauseOf("tiny") ==
        "waiting: 3 workers of this job are alive, and this job store is older than their run; give the "
        "coordinator its newest store, or `geopipectl resume tiny --from store` stops them and goes on from what this "
        "store knows");
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_STORE});
  CHECK(f.Stops() == 3);
  CHECK(f.broken == "");
}

TEST_CASE("a store from a run's first moments stops none of its workers, in whichever order their agents return") {
  Federation before;
  before.Step(ApplyJob{before.next_call++, before.job, before.run});
  for (const std::string& site : before.sites) {
    before.Register(site);
  }
  REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  StoredState older = before.Stored();
  CoordinatorOptions options = NextLife();
  for (const bool again : {false, true}) {  // another restart changes nothing
    INFO("again " << again);
    Federation f(options, older);
    for (const std::string& site : f.sites) {
      f.Register(site, 1, {before.IdOf(DeviceAt(site))}, 1, {StateOf(v1::WORKER_PHASE_TRAINING, 1, 1)});
      CHECK(f.Stops() == 0);
    }
    f.RunFor(10 * kSecond);
    CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
    CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("waiting: 3 workers of this job are alive"));
    older = f.Stored();
    options = NextLife(options);
  }
}

// The store knows a worker that its agent has not: it is started again, and the job then turns out to have a later run.
TEST_CASE("a worker that an older store's coordinator has started itself ends with the run that people give up") {
  Federation before(Federation::RecoveringOptions());
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Exit(DeviceAt("north"), 9);
  REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_RECOVERING);
  Federation f(NextLife(Federation::RecoveringOptions()), before.Stored());
  f.Register("north");
  f.RunFor(kSecond / 10);
  const uint64_t started = f.IdOf(DeviceAt("north")).incarnation();
  f.Answer("north", HelloReport());
  v1::WorkerState later = StateOf(v1::WORKER_PHASE_TRAINING, 1, 3);
  later.mutable_status()->set_run_incarnation(Federation::kRun + 10);
  f.Register("east", 1, {MakeWorkerId(DeviceAt("east"), "tiny", Federation::kRun + 11)}, 1, {later});
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  f.RunFor(kSecond);
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_STORE});
  std::vector<uint64_t> stopped;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.has_stop_workers()) {
      stopped.push_back(send.message.stop_workers().incarnation());
    }
  }
  CHECK_THAT(stopped, Catch::Matchers::UnorderedEquals(std::vector{started, Federation::kRun + 11}));
}

// A store knows a job's first run; the agents of some sites have workers of the one that has followed it elsewhere.
TEST_CASE("a store that knows an earlier run of a job leaves the workers of the later one alone until people choose") {
  Federation before(Federation::RecoveringOptions());
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.IterateAll(0);
  Federation f(NextLife(Federation::RecoveringOptions()), before.Stored());
  constexpr uint64_t kLater = Federation::kRun + 11;
  const auto return_later = [&](const std::string& site) {
    v1::WorkerState state = StateOf(v1::WORKER_PHASE_TRAINING, 2, 3);
    state.mutable_status()->set_run_incarnation(Federation::kRun + 10);
    f.Register(site, 1, {MakeWorkerId(DeviceAt(site), "tiny", kLater)}, 1, {state});
    for (const SendToAgent& send : f.Last<SendToAgent>()) {
      CHECK(send.message.stop_workers().incarnation() != kLater);
    }
  };
  if (const bool restarts = GENERATE(false, true);
      restarts) {  // the first run is given a worker where the later is not
    f.Register("north");
    f.RunFor(60 * kSecond);
  }
  return_later("east");
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  return_later("west");
  f.RunFor(10 * kSecond);
  CHECK_THAT(f.CauseOf("tiny"), Catch::StartsWith("waiting: 2 workers of this job are alive"));
  f.Step(ResumeJob{{{f.next_call++}, "tiny"}, "secret", v1::RESUME_FROM_STORE});
  CHECK(f.Stops() == 2);
  CHECK(f.broken == "");
}

}  // namespace
}  // namespace geopipe
