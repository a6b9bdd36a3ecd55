// Not to know a run is no knowledge that it is over: a coordinator with a lost, foreign or older store stops nobody.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
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
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  f.RunFor(kSecond);
  CHECK(f.StateOf("tiny") == v1::JOB_STATE_PENDING);
  CHECK_THAT(f.CauseOf("tiny"), Catch::Contains("tiny (unknown here; its worker"));
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

TEST_CASE("a worker of a run that is known to be over is stopped at once, also by another life of the coordinator") {
  Federation before;
  before.DriveTo(v1::JOB_STATE_RUNNING);
  before.Step(CancelJob{{{before.next_call++}, "tiny"}, "enough"});
  REQUIRE(before.StateOf("tiny") == v1::JOB_STATE_CANCELLED);
  const bool restarted = GENERATE(false, true);
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
    CHECK(closed[0].status.code() == absl::StatusCode::kUnavailable);  // it tries again
    CHECK_THAT(SitesIn(f).refused(0).why(),
               Catch::StartsWith("agent west/n0 has 1 worker of federation a, and this coordinator's job store is of "
                                 "federation b: they go on by themselves; give"));
    f.RunFor(61 * kSecond);
    CHECK(SitesIn(f).refused_size() == 0);
  }
}

}  // namespace
}  // namespace geopipe
