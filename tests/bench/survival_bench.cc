// Acceptance: does a run outlive its control plane? A coordinator, three agents and three workers as real processes,
// on paced devices, over rehearsed links of 20 ms. Exits 1 when a bar is missed.
//
//   survival_bench                  all parts, 40 minutes
//   survival_bench kills queue      some of them:
//     kills     kill -9 of the coordinator 50 times, of each agent 20 times, of each keeper 5 times, of coordinator and
//               agents together 10 times, each in a run of 300 iterations
//     queue     50 jobs wait, while the coordinator is killed again and again
//     away      a coordinator that is away for ten minutes
//     stopped   an agent that is stopped for 60 s, a coordinator for 120 s
//     long      an agent that is away for longer than its orphan_grace: in long iterations, and in a pause
//     half-open streams that carry nothing any more: of one agent, then of all
//     reports   28 s of reports that nobody takes, more than agent and workers may keep
//     worker    a stopped worker, and one that is cut off from everything
//     site      a site that is lost with its disk and comes back
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/splitmix64.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "tests/support/durations.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

constexpr int64_t kLimitNs = 900 * kSecond;
// The bars.
constexpr double kMaxSlowdown = 1.02;  // of the median iteration
constexpr int64_t kMaxAdoptedNs = 3 * kSecond;
constexpr int64_t kFailedAfterNs = 5 * kSecond;  // the coordinator's default

struct Flags {
  std::vector<std::string> parts;
  uint64_t seed = 1;
  int64_t iterations = 300;
  int64_t away_ns = 600 * kSecond;
  int64_t waiting = 50;

  bool Wants(std::string_view part) const { return parts.empty() || std::ranges::find(parts, part) != parts.end(); }
};

int missed = 0;

// Says whether a bar holds, and remembers when it does not.
std::string Held(bool held) {
  missed += held ? 0 : 1;
  return held ? "ok" : "MISSED";
}

template <class... T>
void Say(fmt::format_string<T...> format, T&&... values) {
  fmt::print(format, std::forward<T>(values)...);
  std::fflush(stdout);
}

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

int64_t Median(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<int64_t> Durations(const std::vector<v1::IterationSummary>& curve) {
  std::vector<int64_t> durations;
  for (const v1::IterationSummary& iteration : curve) {
    durations.push_back(iteration.duration_ns());
  }
  return durations;
}

std::string Bits(bool same) { return same ? "same bits" : "OTHER NUMBERS"; }

// --- Parts ------------------------------------------------------------------------------------------------------

absl::Status Kills(const Flags& flags) {
  std::vector<std::pair<std::string, std::vector<Victims>>> variants{
      {"undisturbed", {}}, {"coordinator", {}}, {"agents", {}}, {"keepers", {}}, {"together", {}}};
  variants[1].second.assign(50, {.coordinator = true});
  for (int i = 0; i < 20; ++i) {
    for (size_t site = 0; site < 3; ++site) {
      variants[2].second.push_back({.agents = {site}});
    }
  }
  for (int i = 0; i < 5; ++i) {
    for (size_t site = 0; site < 3; ++site) {
      variants[3].second.push_back({.keepers = {site}});
    }
  }
  variants[4].second.assign(10, {.coordinator = true, .agents = {0, 1, 2}});
  ProcessFederationOptions options;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, flags.iterations));
  Say("\nkill -9 at random instants of a run of {} iterations (seed {}); losses and gradient norms against those of "
      "one\n"
      "site alone; adopted: until an iteration that began to be told since has been told by all ranks\n\n"
      "  {:<12} {:>5} {:>20} {:>18} {:>9} {:>18} {:>16}  {}\n",
      flags.iterations, flags.seed, "killed", "times", "adopted median, max", "iteration (median)", "ratio",
      "longest iteration", "losses", "");
  int64_t undisturbed_ns = 0;
  std::vector<v1::IterationSummary> first;
  for (const auto& [name, kills] : variants) {
    GP_ASSIGN_OR_RETURN(const KilledRun run, TrainUnderKills(*federation, name, flags.iterations, kills, flags.seed));
    const absl::Status whole = CheckWhole(run.curve, flags.iterations);
    const std::vector<int64_t> durations = Durations(run.curve);
    const int64_t median_ns = Median(durations);
    undisturbed_ns = undisturbed_ns == 0 ? median_ns : undisturbed_ns;
    const double ratio = static_cast<double>(median_ns) / static_cast<double>(undisturbed_ns);
    const int64_t slowest_ns = run.adopted_ns.empty() ? 0 : std::ranges::max(run.adopted_ns);
    const bool same = NumbersOf(run.curve) == alone;
    const bool held = whole.ok() && same && ratio <= kMaxSlowdown && slowest_ns <= kMaxAdoptedNs;
    Say("  {:<12} {:>5} {:>20} {:>18} {:>9.4f} {:>18} {:>16}  {}\n", name, kills.size(),
        kills.empty() ? "" : fmt::format("{:.2f} s, {:.2f} s", Seconds(Median(run.adopted_ns)), Seconds(slowest_ns)),
        fmt::format("{:.1f} ms", 1e3 * Seconds(median_ns)), ratio,
        fmt::format("{:.1f} ms", 1e3 * Seconds(std::ranges::max(durations))), Bits(same), Held(held));
    if (!whole.ok()) {
      Say("    {}\n", std::string(whole.message()));
    }
    first = first.empty() ? run.curve : first;
  }
  // The first job has completed before every one of these restarts.
  GP_ASSIGN_OR_RETURN(const std::vector<v1::IterationSummary> again, federation->Curve("undisturbed"));
  GP_ASSIGN_OR_RETURN(const std::string described, federation->Geopipectl({"describe", "undisturbed"}));
  Say("  watch of the job that completed before all restarts: {} iterations, {}  {}\n", again.size(),
      Bits(NumbersOf(again) == NumbersOf(first)), Held(NumbersOf(again) == NumbersOf(first)));
  Say("\n{}\n", described);
  return absl::OkStatus();
}

absl::Status Queue(const Flags& flags) {
  ProcessFederationOptions options;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  SplitMix64 random(flags.seed);
  std::vector<std::string> jobs;
  for (int64_t i = 0; i <= flags.waiting; ++i) {
    jobs.push_back(i == 0 ? "runs" : fmt::format("waits-{:02}", i));
    GP_RETURN_IF_ERROR(SubmitPaced(*federation, jobs.back(), i == 0 ? 20 : 1));
  }
  int kills = 0;
  size_t completed = 0;
  const int64_t begin_ns = Clock::Real().NowNs();
  while (completed < jobs.size() && Clock::Real().NowNs() < begin_ns + kLimitNs) {
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + static_cast<int64_t>(10e9 * random.Uniform()));
    federation->KillCoordinator();
    GP_RETURN_IF_ERROR(federation->StartCoordinator());
    ++kills;
    GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse listed, federation->control().ListJobs());
    completed = std::ranges::count(listed.jobs(), v1::JOB_STATE_COMPLETED, &v1::JobSummary::state);
    for (const v1::JobSummary& job : listed.jobs()) {
      if (job.state() == v1::JOB_STATE_FAILED) {
        return absl::InternalError(fmt::format("job {} is FAILED: {}", job.name(), job.cause()));
      }
    }
  }
  bool in_order = true;
  int64_t before_ns = 0;
  for (const std::string& job : jobs) {
    GP_ASSIGN_OR_RETURN(const int64_t begun_ns, BegunUnixNs(*federation, job));
    in_order = in_order && begun_ns > before_ns;
    before_ns = begun_ns;
  }
  Say("\n{} jobs wait behind one that runs; the coordinator is killed {} times meanwhile\n  {} of {} completed, {}  "
      "{}\n",
      flags.waiting, kills, completed, jobs.size(), in_order ? "in order" : "OUT OF ORDER",
      Held(completed == jobs.size() && in_order));
  return absl::OkStatus();
}

absl::Status Away(const Flags& flags) {
  ProcessFederationOptions options;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  GP_RETURN_IF_ERROR(SubmitPaced(*federation, "alone-for-long", kPlannedIterations));
  GP_RETURN_IF_ERROR(federation->AwaitIteration("alone-for-long", 3, kLimitNs));
  GP_ASSIGN_OR_RETURN(const v1::JobSummary before, federation->Summary("alone-for-long"));
  federation->KillCoordinator();
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + flags.away_ns);
  GP_RETURN_IF_ERROR(federation->StartCoordinator());
  const int64_t back_ns = Clock::Real().NowNs();
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, federation->control().GetJob("alone-for-long"));
  const int64_t expected =
      before.iterations_done() + flags.away_ns * 98 / 100 / std::max<int64_t>(1, detail.prediction().iteration_ns());
  GP_RETURN_IF_ERROR(federation->AwaitIteration("alone-for-long", expected, kLimitNs));
  const int64_t told_ns = Clock::Real().NowNs();
  GP_RETURN_IF_ERROR(federation->Geopipectl({"cancel", "alone-for-long"}).status());
  GP_ASSIGN_OR_RETURN(const std::vector<v1::IterationSummary> curve, federation->Curve("alone-for-long"));
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, std::ssize(curve)));
  const absl::Status whole = CheckWhole(curve, std::ssize(curve));
  const bool same = NumbersOf(curve) == alone;
  Say("\na coordinator that is away for {}\n  iterations {} when it went, {} told {:.2f} s after its return; curve of "
      "{}: "
      "{}, {}  {}\n",
      FormatDuration(flags.away_ns), before.iterations_done(), expected, Seconds(told_ns - back_ns), curve.size(),
      whole.ok() ? "whole" : std::string(whole.message()), Bits(same), Held(whole.ok() && same));
  return absl::OkStatus();
}

// Waits for the job's end and checks that all of it was reported.
absl::Status FinishWhole(ProcessFederation& federation, const std::string& job, int64_t iterations) {
  GP_RETURN_IF_ERROR(federation.AwaitState(job, v1::JOB_STATE_COMPLETED, kLimitNs));
  GP_ASSIGN_OR_RETURN(const std::vector<v1::IterationSummary> curve, federation.Curve(job));
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(federation, iterations));
  const absl::Status whole = CheckWhole(curve, iterations);
  const bool same = NumbersOf(curve) == alone;
  Say("  {} iterations told: {}, {}  {}\n", curve.size(), whole.ok() ? "whole" : std::string(whole.message()),
      Bits(same), Held(whole.ok() && same));
  return absl::OkStatus();
}

absl::Status Stopped(const Flags& /*flags*/) {
  ProcessFederationOptions options;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  constexpr int64_t kIterations = 460;
  GP_RETURN_IF_ERROR(SubmitPaced(*federation, "stopped", kIterations));
  GP_RETURN_IF_ERROR(federation->AwaitIteration("stopped", 3, kLimitNs));
  Say("\nSIGSTOP of an agent for 60 s, then of the coordinator for 120 s\n");
  const auto look = [&](const std::string& what) -> absl::Status {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary summary, federation->Summary("stopped"));
    Say("  {}: {}, {} iterations told  {}\n", what, JobStateName(summary.state()), summary.iterations_done(),
        Held(summary.state() == v1::JOB_STATE_RUNNING));
    return absl::OkStatus();
  };
  StopFor(federation->agent_pid(1), 60 * kSecond);
  GP_RETURN_IF_ERROR(look("after the agent's 60 s"));
  StopFor(federation->coordinator_pid(), 120 * kSecond);
  GP_RETURN_IF_ERROR(look("after the coordinator's 120 s"));
  return FinishWhole(*federation, "stopped", kIterations);
}

absl::Status LongAbsences(const Flags& /*flags*/) {
  ProcessFederationOptions options;
  options.orphan_grace_ns = 6 * kSecond;
  constexpr int64_t kIterations = 16;
  constexpr int64_t kAwayNs = 60 * kSecond;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  Say("\nan agent is away for {}: while it trains, and while its job is paused; orphan_grace is {}\n",
      FormatDuration(kAwayNs), FormatDuration(options.orphan_grace_ns));
  GP_ASSIGN_OR_RETURN(const auto run, TrainUnderLongAbsences(*federation, "slow", kIterations, kAwayNs));
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, kIterations));
  const absl::Status whole = CheckWhole(run.curve, kIterations);
  const bool same = NumbersOf(run.curve) == alone;
  Say("  iterations of {:.1f} s; resumed meanwhile: {}  {} iterations told: {}, {}  {}\n",
      Seconds(Median(Durations(run.curve))), run.resumed, run.curve.size(),
      whole.ok() ? "whole" : std::string(whole.message()), Bits(same), Held(whole.ok() && same));
  return absl::OkStatus();
}

absl::Status HalfOpen(const Flags& /*flags*/) {
  ProcessFederationOptions options;
  options.proxied = true;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  constexpr int64_t kIterations = 150;
  GP_RETURN_IF_ERROR(SubmitPaced(*federation, "half-open", kIterations));
  GP_RETURN_IF_ERROR(federation->AwaitIteration("half-open", 3, kLimitNs));
  Say("\nstreams that carry nothing any more; failed_after is {}\n", FormatDuration(kFailedAfterNs));
  const std::vector<std::vector<size_t>> cuts{{1}, {0, 1, 2}};
  for (const std::vector<size_t>& sites : cuts) {
    GP_ASSIGN_OR_RETURN(const HalfOpenNoticed noticed, SwallowStreams(*federation, sites));
    const int64_t slowest_ns = std::max(noticed.by_agent_ns, noticed.by_coordinator_ns);
    Say("  of {} agent(s): noticed by the agent after {:.2f} s, by the coordinator after {:.2f} s  {}\n", sites.size(),
        Seconds(noticed.by_agent_ns), Seconds(noticed.by_coordinator_ns), Held(slowest_ns <= kFailedAfterNs + kSecond));
    for (const size_t site : sites) {
      federation->proxy(site).Restore();
    }
    const int64_t restored_ns = Clock::Real().NowNs();
    GP_ASSIGN_OR_RETURN(const int64_t back_ns,
                        AwaitNs("the return of the agents", kLimitNs, [&] { return federation->AllConnected(); }));
    Say("  connected again {:.2f} s after the path was\n", Seconds(back_ns - restored_ns));
  }
  return FinishWhole(*federation, "half-open", kIterations);
}

// The latest "gave up" line of each agent's log.
std::string GivenUp(const ProcessFederation& federation) {
  std::string lines;
  for (const std::string& site : federation.site_names()) {
    const std::string log = federation.Log(site);
    if (const size_t at = log.rfind("gave up"); at != std::string::npos) {
      lines += fmt::format("  agent of {}: {}\n", site, log.substr(at, log.find('\n', at) - at));
    }
  }
  return lines;
}

// An iteration of 20,000 micro-batches has a hundred thousand actions on each rank.
absl::Status LostReports(const Flags& /*flags*/) {
  ProcessFederationOptions options;
  options.latency_ns = 100'000;
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
  constexpr int64_t kIterations = 80;
  GP_RETURN_IF_ERROR(SubmitLong(*federation, "long", kIterations));
  GP_RETURN_IF_ERROR(federation->AwaitIteration("long", 3, kLimitNs));
  Say("\nreports of 3 MB an iteration and rank that nobody takes, for 28 s and for 60 s\n");
  for (const int64_t stop_ns : {28 * kSecond, 60 * kSecond}) {
    GP_ASSIGN_OR_RETURN(const v1::JobSummary before, federation->Summary("long"));
    StopFor(federation->coordinator_pid(), stop_ns);
    GP_RETURN_IF_ERROR(federation->AwaitIteration("long", before.iterations_done() + 5, kLimitNs));
    GP_ASSIGN_OR_RETURN(const v1::JobSummary after, federation->Summary("long"));
    Say("  {}: {}, iterations {} before and {} after  {}\n", FormatDuration(stop_ns), JobStateName(after.state()),
        before.iterations_done(), after.iterations_done(), Held(after.state() == v1::JOB_STATE_RUNNING));
  }
  GP_RETURN_IF_ERROR(federation->AwaitState("long", v1::JOB_STATE_COMPLETED, kLimitNs));
  GP_ASSIGN_OR_RETURN(const std::vector<v1::IterationSummary> curve, federation->Curve("long"));
  Say("{}  COMPLETED; {} of {} iterations told, {} of them incomplete  {}\n", GivenUp(*federation), curve.size(),
      kIterations, std::ranges::count_if(curve, &v1::IterationSummary::incomplete),
      Held(std::ssize(curve) == kIterations));
  return absl::OkStatus();
}

absl::Status Workers(const Flags& /*flags*/) {
  Say("\nworkers\n");
  {
    ProcessFederationOptions options;
    GP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessFederation> federation, ProcessFederation::Start(options));
    constexpr int64_t kIterations = 80;
    std::vector<Loss> losses;
    for (size_t round = 0; round < 4; ++round) {
      for (size_t site = 0; site < federation->sites(); ++site) {
        losses.push_back({.signal = (round + site) % 2 == 0 ? SIGKILL : SIGSTOP, .site = site});
      }
    }
    GP_ASSIGN_OR_RETURN(const LossyRun run, TrainUnderLosses(*federation, "lossy", kIterations, losses));
    for (size_t i = 0; i < losses.size(); ++i) {
      const LossOutcome& outcome = run.outcomes[i];
      const int64_t repeated = outcome.recovery.reached_iteration() - outcome.recovery.first_iteration();
      const bool stopped = losses[i].signal == SIGSTOP;
      Say("  {} of rank {}: noticed after {:.2f} s, RUNNING after {:.2f} s, an iteration after {:.2f} s; {} repeated  "
          "{}\n",
          stopped ? "SIGSTOP" : "SIGKILL", losses[i].site, Seconds(outcome.noticed_ns), Seconds(outcome.running_ns),
          Seconds(outcome.trained_ns), repeated,
          Held(outcome.noticed_ns <= 6 * kSecond && outcome.running_ns <= (stopped ? 16 : 10) * kSecond &&
               repeated <= 1));
    }
    GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, kIterations));
    Say("  {} of {} iterations told, same bits as alone  {}\n", run.curve.size(), kIterations,
        Held(NumbersOf(run.curve) == alone));
    GP_ASSIGN_OR_RETURN(const std::string end, LoseWorkerAgainAndAgain(*federation, "doomed", 1));
    Say("  killed as often as it is started: {}  {}\n", end, Held(end.starts_with("FAILED: worker ")));
  }
  constexpr int64_t kGraceNs = 30 * kSecond;
  GP_ASSIGN_OR_RETURN(const OrphanEnd end, CutWorkerOff(kGraceNs));
  Say("  cut off from peers and agent: gone after {:.2f} s (orphan_grace {}); until then the job was {} and its peer "
      "{}  "
      "{}\n  then: {}\n",
      Seconds(end.lived_ns), FormatDuration(kGraceNs), JobStateName(end.state_at_end),
      end.peer_lived ? "lived" : "GONE",
      Held(end.lived_ns <= kGraceNs + kSecond && end.peer_lived && end.state_at_end == v1::JOB_STATE_RUNNING),
      end.cause);
  return absl::OkStatus();
}

absl::Status Sites(const Flags& /*flags*/) {
  constexpr int64_t kIterations = 900;
  constexpr int64_t kBarNs = 60 * kSecond;
  Say("\na site is killed with its disk, and comes back with an empty one; grace and orphan_grace are 30s\n");
  if (!CanHaveOwnDisks()) {
    return absl::UnavailableError("it needs mount namespaces");
  }
  GP_ASSIGN_OR_RETURN(const auto federation, ProcessFederation::Start({.own_disks = true}));
  const SiteLoss loss{.site = 1, .every = 10, .grace_ns = 30 * kSecond};
  GP_ASSIGN_OR_RETURN(const SiteLossRun run, TrainUnderSiteLoss(*federation, "moving", kIterations, loss));
  const v1::RecoverySummary& recovery = run.detail.recoveries(0);
  Say("  RUNNING at the others after {:.2f} s, an iteration after {:.2f} s; {} iterations repeated, a checkpoint every "
      "{}  "
      "{}\n",
      Seconds(run.running_ns), Seconds(run.trained_ns), recovery.reached_iteration() - recovery.first_iteration(),
      loss.every,
      Held(run.trained_ns <= kBarNs && recovery.source() == "checkpoint" && recovery.first_iteration() >= run.copied));
  Say("  its agent is started: RUNNING at all sites after {:.2f} s  {}\n", Seconds(run.back_ns),
      Held(run.detail.epochs().rbegin()->sites_size() == 3));
  for (const v1::EpochSummary& epoch : run.detail.epochs()) {
    Say("  epoch {} at {} from iteration {}: {}\n", epoch.number(), fmt::join(epoch.sites(), ", "),
        epoch.first_iteration(), epoch.cause());
  }
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, kIterations));
  Say("  {} of {} iterations told, same bits as alone  {}\n", run.curve.size(), kIterations,
      Held(CheckWhole(run.curve, kIterations).ok() && NumbersOf(run.curve) == alone));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("survival_bench", "Kills, stops and cuts off what is around a run.");
  set.Add("seed", &flags.seed, "N", "Of the instants.");
  set.Add("iterations", &flags.iterations, "N", "Of each run of kills.");
  set.AddDuration("away", &flags.away_ns, "How long the coordinator is away.");
  set.Add("waiting", &flags.waiting, "N", "Jobs that wait.");
  set.AddPositionals("PART", &flags.parts,
                     "kills, queue, away, stopped, long, half-open, reports, worker, site; default all.");
  absl::Status status = set.Parse(argc - 1, argv + 1);
  if (status.ok() && set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "survival_bench", .level = LogLevel::kError});
  const std::vector<std::pair<std::string, absl::Status (*)(const Flags&)>> parts{
      {"kills", &Kills},         {"queue", &Queue},       {"away", &Away},
      {"stopped", &Stopped},     {"long", &LongAbsences}, {"half-open", &HalfOpen},
      {"reports", &LostReports}, {"worker", &Workers},    {"site", &Sites}};
  for (const auto& [name, run] : parts) {
    if (status.ok() && flags.Wants(name)) {
      status = run(flags);
    }
  }
  if (!status.ok()) {
    fmt::print(stderr, "survival_bench: {}\n", std::string(status.message()));
    return 1;
  }
  fmt::print("\n{}\n", missed == 0 ? "every bar holds" : fmt::format("{} bars missed", missed));
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
