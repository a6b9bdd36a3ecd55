// Kills, stops and cuts off real programs while a job trains. tests/bench/survival_bench.cc does the same for longer
// and measures it; the simulation (tests/simulation) tries what can be combined.
#include "tests/support/survival.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "tests/support/durations.h"
#include "tests/support/relay_federation.h"
#include "tests/support/required.h"
#include "tests/support/seed.h"
#include "tests/support/skip.h"

namespace geopipe {
namespace {

constexpr int64_t kLimitNs = 90 * kSecond;
// Heartbeats are missed after 5 s, and a loaded machine may look a second later.
constexpr int64_t kNoticedNs = 6 * kSecond;

std::unique_ptr<ProcessFederation> StartFederation(const ProcessFederationOptions& options = {}) {
  return Required(ProcessFederation::Start(options));
}

void Check(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

std::vector<v1::IterationSummary> CompletedCurve(ProcessFederation& federation, const std::string& job,
                                                 int64_t iterations) {
  Check(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, kLimitNs));
  const absl::StatusOr<std::vector<v1::IterationSummary>> curve = federation.Curve(job);
  Check(curve.status());
  Check(CheckWhole(*curve, iterations));
  return *curve;
}

TEST_CASE("coordinator, agents and keepers are killed at random instants, and the run is that of nobody's death") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  constexpr int64_t kIterations = 60;
  const auto federation = StartFederation();
  const std::vector<Victims> kills{{.coordinator = true},
                                   {.agents = {0}},
                                   {.agents = {1}},
                                   {.keepers = {2}},
                                   {.coordinator = true},
                                   {.agents = {2}},
                                   {.coordinator = true, .agents = {0, 1, 2}, .keepers = {0}}};
  const auto run = TrainUnderKills(*federation, "killed", kIterations, kills, seed);
  Check(run.status());
  Check(CheckWhole(run->curve, kIterations));
  const absl::StatusOr<std::string> alone = NumbersAlone(*federation, kIterations);
  Check(alone.status());
  CHECK(NumbersOf(run->curve) == *alone);

  // A coordinator that never saw it run tells all of it, too.
  federation->KillCoordinator();
  Check(federation->StartCoordinator());
  const auto curve = federation->Curve("killed");
  Check(curve.status());
  CHECK(NumbersOf(*curve) == NumbersOf(run->curve));
  const auto described = federation->Geopipectl({"describe", "killed"});
  Check(described.status());
  CHECK(described->find("COMPLETED") != std::string::npos);
}

TEST_CASE("jobs that wait survive the coordinator and run in order") {
  const auto federation = StartFederation();
  constexpr int kWaiting = 3;
  Check(SubmitPaced(*federation, "first", 8));
  for (int i = 1; i <= kWaiting; ++i) {
    Check(SubmitPaced(*federation, "waits-" + std::to_string(i), 1));
  }
  Check(federation->AwaitIteration("first", 2, kLimitNs));
  federation->KillCoordinator();
  Check(federation->StartCoordinator());
  Check(federation->AwaitState("waits-1", v1::JOB_STATE_RUNNING, kLimitNs));
  federation->KillCoordinator();
  Check(federation->StartCoordinator());
  int64_t before_ns = 0;
  CompletedCurve(*federation, "first", 8);
  for (int i = 1; i <= kWaiting; ++i) {
    const std::string job = "waits-" + std::to_string(i);
    CompletedCurve(*federation, job, 1);
    const absl::StatusOr<int64_t> begun_ns = BegunUnixNs(*federation, job);
    Check(begun_ns.status());
    CHECK(*begun_ns > before_ns);
    before_ns = *begun_ns;
  }
}

TEST_CASE("half-open streams are noticed on both ends, and cost the job nothing") {
  const auto federation = StartFederation({.proxied = true});
  Check(SubmitPaced(*federation, "half", 60));
  Check(federation->AwaitIteration("half", 2, kLimitNs));
  const auto noticed = SwallowStreams(*federation, {1});
  Check(noticed.status());
  CHECK(noticed->by_agent_ns < kNoticedNs);
  CHECK(noticed->by_coordinator_ns < kNoticedNs);
  federation->proxy(1).Restore();
  CompletedCurve(*federation, "half", 60);
}

TEST_CASE("an agent and a coordinator that are stopped blame nobody, and all is told when they go on") {
  const auto federation = StartFederation();
  Check(SubmitPaced(*federation, "stopped", 60));
  Check(federation->AwaitIteration("stopped", 2, kLimitNs));
  StopFor(federation->agent_pid(0), 8 * kSecond);
  const auto summary = federation->Summary("stopped");
  Check(summary.status());
  CHECK(summary->state() == v1::JOB_STATE_RUNNING);
  StopFor(federation->coordinator_pid(), 8 * kSecond);
  CompletedCurve(*federation, "stopped", 60);
}

TEST_CASE("an agent may be away for longer than the grace, in a long iteration and while its job is paused") {
  constexpr int64_t kIterations = 4;
  const auto federation = StartFederation({.orphan_grace_ns = 6 * kSecond});
  const auto run = TrainUnderLongAbsences(*federation, "slow", kIterations, 12 * kSecond);
  Check(run.status());
  Check(CheckWhole(run->curve, kIterations));
  const absl::StatusOr<std::string> alone = NumbersAlone(*federation, kIterations);
  Check(alone.status());
  CHECK(NumbersOf(run->curve) == *alone);
  CHECK(run->resumed == "job slow PAUSED: it goes on when agent east/0 can be heard\n");
}

TEST_CASE("workers are killed and stopped, each is started again, and the run is that of nobody's death") {
  constexpr int64_t kIterations = 24;
  const auto federation = StartFederation();
  const std::vector<Loss> losses = {{SIGKILL, 0}, {SIGSTOP, 1}, {SIGABRT, 2}, {SIGKILL, 1}};
  const absl::StatusOr<LossyRun> run = TrainUnderLosses(*federation, "lossy", kIterations, losses);
  Check(run.status());
  for (size_t i = 0; i < losses.size(); ++i) {
    const LossOutcome& outcome = run->outcomes[i];
    INFO(outcome.recovery.DebugString());
    CHECK(outcome.noticed_ns < kNoticedNs);
    CHECK(outcome.running_ns < kNoticedNs + 10 * kSecond);
    CHECK(outcome.recovery.source() == "memory");
    CHECK(outcome.recovery.reached_iteration() - outcome.recovery.first_iteration() <= 1);
    REQUIRE(outcome.recovery.workers_size() == 1);
    CHECK(outcome.recovery.workers(0).site() == federation->site(losses[i].site));
    CHECK(outcome.recovery.kind() == (losses[i].signal == SIGSTOP ? "silent" : "killed"));
  }
  Check(CheckWhole(run->curve, kIterations));
  const absl::StatusOr<std::string> alone = NumbersAlone(*federation, kIterations);
  Check(alone.status());
  CHECK(NumbersOf(run->curve) == *alone);
}

TEST_CASE("a site is lost with its disk: the job goes on at the others, and uses it again when it is back") {
  if (!CanHaveOwnDisks()) {
    Skip("it needs mount namespaces");
    return;
  }
  constexpr int64_t kIterations = 300;
  const auto federation = StartFederation({.orphan_grace_ns = 6 * kSecond, .own_disks = true});
  const SiteLoss loss{.site = 1};
  const absl::StatusOr<SiteLossRun> run = TrainUnderSiteLoss(*federation, "moving", kIterations, loss);
  Check(run.status());
  INFO(run->detail.DebugString());
  CHECK(run->trained_ns < 60 * kSecond);
  REQUIRE(run->detail.recoveries_size() == 1);
  const v1::RecoverySummary& recovery = run->detail.recoveries(0);
  CHECK(recovery.source() == "checkpoint");
  CHECK(recovery.first_iteration() >= run->copied);
  CHECK(run->detail.epochs().rbegin()->sites_size() == 3);
  Check(CheckWhole(run->curve, kIterations));
  const absl::StatusOr<std::string> alone = NumbersAlone(*federation, kIterations);
  Check(alone.status());
  CHECK(NumbersOf(run->curve) == *alone);
}

// Waits until the job runs at so many sites.
absl::Status AwaitSites(const ProcessFederation& federation, const std::string& name, int sites) {
  return AwaitNs("the job at other sites", kLimitNs,
                 [&]() -> absl::StatusOr<bool> {
                   const absl::StatusOr<v1::JobDetail> detail = federation.control().GetJob(name);
                   return detail.ok() && detail->summary().state() == v1::JOB_STATE_RUNNING &&
                          detail->epochs().rbegin()->sites_size() == sites;
                 })
      .status();
}

// The job has come to its end with the bits of one that stays, without a loss or a repeated iteration.
void CheckMoved(ProcessFederation& federation, const std::string& name, int64_t iterations) {
  const std::vector<v1::IterationSummary> curve = CompletedCurve(federation, name, iterations);
  const absl::StatusOr<v1::JobDetail> detail = federation.control().GetJob(name);
  Check(detail.status());
  CHECK(detail->recoveries_size() == 0);
  for (int i = 1; i < detail->epochs_size(); ++i) {
    CHECK(detail->epochs(i).first_iteration() == detail->epochs(i - 1).next_iteration());
  }
  const absl::StatusOr<std::string> alone = NumbersAlone(federation, iterations);
  Check(alone.status());
  CHECK(NumbersOf(curve) == *alone);
}

TEST_CASE("a site is drained: its job goes on at the others without repeating anything, and comes back") {
  if (!CanHaveOwnDisks()) {
    Skip("it needs mount namespaces");
    return;
  }
  constexpr int64_t kIterations = 150;
  const auto federation = StartFederation({.own_disks = true});
  Check(SubmitMoving(*federation, "drained", kIterations, 20, 0, 30 * kSecond));
  Check(federation->AwaitIteration("drained", 5, kLimitNs));
  const auto drained = federation->Geopipectl({"drain", "site", "east"});
  Check(drained.status());
  CHECK(*drained ==
        "site east is drained\njob drained RUNNING: it goes on at north, west when its state is safe there\n");
  Check(AwaitSites(*federation, "drained", 2));
  const auto sites = federation->Geopipectl({"get", "sites", "east"});
  Check(sites.status());
  CHECK(sites->find("connected, drained") != std::string::npos);
  CHECK_FALSE(federation->WorkerOf(1).has_value());
  Check(federation->Geopipectl({"uncordon", "site", "east"}).status());
  Check(AwaitSites(*federation, "drained", 3));
  CheckMoved(*federation, "drained", kIterations);
}

TEST_CASE("a node that goes down is left by its job without a repeated iteration, and used again when it is back") {
  if (!CanHaveOwnDisks()) {
    Skip("it needs mount namespaces");
    return;
  }
  constexpr int64_t kIterations = 150;
  const auto federation = StartFederation({.own_disks = true});
  Check(SubmitMoving(*federation, "moves", kIterations, 20, 0, 30 * kSecond));
  Check(federation->AwaitIteration("moves", 5, kLimitNs));
  const std::optional<ProcessInfo> keeper = federation->KeeperOf(1);
  REQUIRE(keeper.has_value());
  federation->Signal(keeper->pid, SIGTERM);
  Check(AwaitSites(*federation, "moves", 2));
  const auto sites = federation->Geopipectl({"get", "sites", "east"});
  Check(sites.status());
  CHECK(sites->find("connected, leaving") != std::string::npos);
  CHECK(sites->find("goes down: its keeper was told to end") != std::string::npos);
  Check(AwaitNs("the end of the keeper", kLimitNs, [&]() -> absl::StatusOr<bool> {
          return !federation->KeeperOf(1).has_value();
        }).status());
  federation->KillAgent(1);  // the machine starts again
  Check(federation->StartAgent(1));
  Check(AwaitSites(*federation, "moves", 3));
  CheckMoved(*federation, "moves", kIterations);
}

TEST_CASE("a worker that dies five times is the job's end, and all five causes are told") {
  const auto federation = StartFederation();
  const absl::StatusOr<std::string> end = LoseWorkerAgainAndAgain(*federation, "doomed", 1);
  Check(end.status());
  INFO(*end);
  CHECK(
      end->starts_with("FAILED: worker " + federation->site(1) + "/0/0 was lost 5 times within an hour: (1) worker "));
  CHECK(end->find("; (5) worker " + federation->site(1) + "/0/0") != std::string::npos);
}

TEST_CASE("a worker that is cut off from everything ends at its grace, and nobody acts before") {
  if (const absl::Status sites = TunSites::Create().status(); !sites.ok()) {
    Skip("it needs network namespaces and tun devices: " + sites.ToString());
    return;
  }
  constexpr int64_t kGraceNs = 8 * kSecond;
  const absl::StatusOr<OrphanEnd> end = CutWorkerOff(kGraceNs);
  Check(end.status());
  CHECK(end->lived_ns > kGraceNs - 2 * kSecond);  // the last beat came up to a second before
  CHECK(end->lived_ns < kGraceNs + kSecond);
  CHECK(end->state_at_end == v1::JOB_STATE_RUNNING);
  CHECK(end->peer_lived);
  INFO(end->cause);
  CHECK(end->cause.find("east/") != std::string::npos);
}

}  // namespace
}  // namespace geopipe
