// Half an hour of faults at random instants of a run of real processes, of ten kinds (tests/support/chaos_plan.h): what
// each has cost, what is left of training time, and whether the losses are those of an undisturbed run, to the last
// bit. A fault waits for the last one's end, its recovery and a few undisturbed seconds, so that what it costs is its
// own. Ends with 1 when a bar is missed. Needs mount namespaces.
//
//   chaos_bench --seed 1 --minutes 30 --every 25s --svg chaos.svg --logs chaos-logs
#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "tests/support/chaos.h"
#include "tests/support/durations.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

constexpr double kBar = 0.85;  // of the time in which no fault keeps a rank from training
constexpr int64_t kDiskBytes = int64_t{64} << 20;
constexpr int64_t kIterationNs = 531'000'000;  // of the paced job, about
constexpr int64_t kMayLack = 20;               // iterations after a restore, whose numbers nobody has
constexpr int64_t kManyRepeated = 3;           // iterations, of which a recovery is worth a line
constexpr double kShare = 0.9;                 // of the span, for iterations; the rest is for recoveries

struct Flags {
  uint64_t seed = 1;
  int64_t minutes = 30;
  int64_t every_ns = 25 * kSecond;
  std::string kinds;
  std::string svg;
  std::string logs;
};

// Kinds with the names of a list such as "kill,EIO"; of an empty one, all.
absl::StatusOr<std::vector<ChaosFault::Kind>> KindsOf(const std::string& names) {
  std::vector<ChaosFault::Kind> kinds;
  for (std::string name : std::vector<std::string>(absl::StrSplit(names, ',', absl::SkipWhitespace()))) {
    absl::StripAsciiWhitespace(&name);
    const auto kind = std::ranges::find(kChaosKinds, name, ChaosKindName);
    if (kind == kChaosKinds.end()) {
      return absl::InvalidArgumentError(fmt::format("--kinds: no kind is called '{}'", name));
    }
    kinds.push_back(*kind);
  }
  return kinds.empty() ? std::vector(kChaosKinds.begin(), kChaosKinds.end()) : kinds;
}

// Says what is wrong with the numbers of a run; empty: they are those of the undisturbed run, each once. Where a store
// was restored, those told since the backup are lost with the store; what was heard of them before counts, and the few
// that were done in the meantime may lack.
std::string CompareNumbers(const ChaosRun& run, int64_t iterations, const std::string& alone, int64_t* compared) {
  const std::vector<std::string> lines = absl::StrSplit(alone, '\n', absl::SkipEmpty());
  std::vector<const v1::IterationSummary*> known(static_cast<size_t>(iterations));
  for (const auto* curve : {&run.early, &run.curve}) {
    for (const v1::IterationSummary& iteration : *curve) {
      if (iteration.has_loss() && !iteration.incomplete() && iteration.iteration() < iterations) {
        known[static_cast<size_t>(iteration.iteration())] = &iteration;
      }
    }
  }
  for (size_t i = 0; i < known.size(); ++i) {
    if (i >= lines.size() || std::cmp_not_equal(run.curve.size(), iterations) ||
        std::cmp_not_equal(run.curve[i].iteration(), i)) {
      return fmt::format("{} of {} iterations told", run.curve.size(), iterations);
    }
    const int64_t since_restore = run.early.empty() ? -1 : static_cast<int64_t>(i) - run.early.back().iteration();
    if (known[i] == nullptr && (since_restore < 0 || since_restore > kMayLack)) {
      return fmt::format("iteration {} has no complete numbers", i);
    }
    const std::string told = known[i] == nullptr ? "" : NumbersOf({*known[i]});
    if (known[i] != nullptr && told != fmt::format("{}\n", lines[i])) {
      return fmt::format("iteration {} is other than undisturbed: {}instead of {}", i, told, lines[i]);
    }
    *compared += known[i] != nullptr ? 1 : 0;
  }
  return "";
}

void PrintRun(const ChaosRun& run, const std::vector<std::string>& sites) {
  fmt::print("{}\n{}", ChaosText(run, sites, 120), ChaosTable(run, sites));
  int64_t repeated = 0;
  for (const v1::RecoverySummary& recovery : run.detail.recoveries()) {
    const bool went_on = !recovery.source().empty();  // by itself
    const int64_t again = went_on ? std::max<int64_t>(0, recovery.reached_iteration() - recovery.first_iteration()) : 0;
    repeated += again;
    if (again > kManyRepeated) {
      fmt::print("  from iteration {} back to {}, {}: {}\n", recovery.reached_iteration(), recovery.first_iteration(),
                 recovery.source(), recovery.cause());
    }
  }
  const size_t missed = ChaosMissed(run, sites.size());
  fmt::print("  {} faults came about, {} cost more than they may  {}\n", run.outcomes.size(), missed,
             missed == 0 ? "ok" : "MISSED");
  fmt::print(
      "  known at the end: {} recoveries, {} iterations repeated, {} epochs, {} checkpoints with copies of the "
      "latest {}\n",
      run.detail.recoveries_size(), repeated, run.detail.epochs_size(),
      std::ranges::count_if(run.detail.checkpoints(),
                            [](const auto& each) { return each.replicated_unix_time_ns() > 0; }),
      run.detail.checkpoints_size());
}

absl::Status Run(const Flags& flags, bool* met) {
  // Disks of this run's own, which go with it.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::UnavailableError("it needs mount namespaces");
  }
  const int64_t span_ns = flags.minutes * 60 * kSecond;
  const auto iterations = static_cast<int64_t>(kShare * static_cast<double>(span_ns) / kIterationNs);
  GP_ASSIGN_OR_RETURN(std::vector<ChaosFault::Kind> kinds, KindsOf(flags.kinds));
  GP_ASSIGN_OR_RETURN(
      const auto federation,
      ProcessFederation::Start(
          {.own_disks = true, .disk_bytes = kDiskBytes, .bad_environments = true, .restarts_per_hour = 100}));
  const std::vector<std::string>& sites = federation->site_names();
  const std::vector<ChaosFault> faults = DrawChaos({.seed = flags.seed,
                                                    .sites = sites.size(),
                                                    .span_ns = span_ns,
                                                    .every_ns = flags.every_ns,
                                                    .kinds = std::move(kinds)});
  fmt::print("seed {}: {} faults in {} min, {} iterations\n", flags.seed, faults.size(), flags.minutes, iterations);
  std::fflush(stdout);
  ChaosRun run;
  const absl::Status trained = TrainInChaos(*federation, "chaos", iterations, faults, run);
  if (!flags.logs.empty()) {
    GP_RETURN_IF_ERROR(federation->CopyLogs(flags.logs));
  }
  if (!flags.svg.empty()) {
    GP_RETURN_IF_ERROR(WriteFileAtomically(flags.svg, ChaosSvg(run, sites)));
  }
  PrintRun(run, sites);
  GP_RETURN_IF_ERROR(trained);
  const bool is_effective = run.effective_between(sites.size()) >= kBar;
  fmt::print(
      "  effective training time ratio {:.3f} ({} iterations of {:.1f} ms in {:.0f} s; median {:.1f} ms); of the "
      "time in which no fault keeps a rank from training {:.3f}  {} {:.2f}\n",
      run.effective(), run.curve.size(), static_cast<double>(run.iteration_ns) / 1e6,
      static_cast<double>(run.wall_ns) / 1e9, static_cast<double>(run.median_ns) / 1e6,
      run.effective_between(sites.size()), is_effective ? "ok, at least" : "MISSED, at least", kBar);
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, iterations));
  int64_t compared = 0;
  const std::string wrong = CompareNumbers(run, iterations, alone, &compared);
  fmt::print("  losses and gradient norms of {} of {} iterations: {}\n", compared, iterations,
             wrong.empty() ? "same bits as undisturbed  ok" : wrong + "  MISSED");
  *met = is_effective && wrong.empty() && ChaosMissed(run, sites.size()) == 0;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("chaos_bench", "Faults at random instants of a run.");
  set.Add("seed", &flags.seed, "N", "Of the faults.");
  set.Add("minutes", &flags.minutes, "N", "How long.");
  set.AddDuration("every", &flags.every_ns, "Between two faults.");
  set.Add("kinds", &flags.kinds, "KIND,...", "Only these, such as 'kill,EIO'; else all ten.");
  set.Add("svg", &flags.svg, "FILE", "The picture is written there.");
  set.Add("logs", &flags.logs, "FOLDER", "All logs are copied there.");
  if (const absl::Status status = set.Parse(argc - 1, argv + 1); !status.ok()) {
    fmt::print(stderr, "chaos_bench: {}\n", std::string(status.message()));
    return 2;
  }
  if (set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "chaos_bench", .level = LogLevel::kError});
  bool met = false;
  if (const absl::Status status = Run(flags, &met); !status.ok()) {
    fmt::print(stderr, "chaos_bench: {}\n", std::string(status.message()));
    return 1;
  }
  return met ? 0 : 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
