// Half an hour of faults at random instants of a run of real processes: what is left of training time, and whether the
// losses are those of an undisturbed run, to the last bit. Ends with 1 when a bar is missed. Needs mount namespaces.
//
//   chaos_bench --seed 1 --minutes 30 --svg chaos.svg
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstdio>
#include <string>
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

constexpr double kBar = 0.85;
constexpr int64_t kDiskBytes = int64_t{64} << 20;
constexpr int64_t kIterationNs = 531'000'000;  // of the paced job, about

struct Flags {
  uint64_t seed = 1;
  int64_t minutes = 30;
  int64_t every_ns = 60 * kSecond;
  std::string svg;
};

absl::Status Run(const Flags& flags, bool* met) {
  // Disks of this run's own, which go with it.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::UnavailableError("it needs mount namespaces");
  }
  const int64_t span_ns = flags.minutes * 60 * kSecond;
  const auto iterations = static_cast<int64_t>(0.93 * static_cast<double>(span_ns) / kIterationNs);
  GP_ASSIGN_OR_RETURN(
      const auto federation,
      ProcessFederation::Start({.own_disks = true, .disk_bytes = kDiskBytes, .restarts_per_hour = 100}));
  const std::vector<ChaosFault> faults = DrawChaos(flags.seed, federation->sites(), span_ns, flags.every_ns);
  fmt::print("seed {}: {} faults in {} min, {} iterations\n", flags.seed, faults.size(), flags.minutes, iterations);
  std::fflush(stdout);
  GP_ASSIGN_OR_RETURN(const ChaosRun run, TrainInChaos(*federation, "chaos", iterations, faults));
  if (!flags.svg.empty()) {
    GP_RETURN_IF_ERROR(WriteFileAtomically(flags.svg, ChaosSvg(run, federation->site_names())));
  }
  fmt::print("{}\n", ChaosText(run, federation->site_names(), 120));
  int64_t repeated = 0;
  for (const v1::RecoverySummary& recovery : run.detail.recoveries()) {
    repeated += std::max<int64_t>(0, recovery.reached_iteration() - recovery.first_iteration());
  }
  fmt::print(
      "  {} faults came about; {} recoveries, {} iterations repeated, {} epochs, {} checkpoints with copies of the "
      "latest {}\n",
      run.faults.size(), run.detail.recoveries_size(), repeated, run.detail.epochs_size(),
      std::ranges::count_if(run.detail.checkpoints(),
                            [](const auto& each) { return each.replicated_unix_time_ns() > 0; }),
      run.detail.checkpoints_size());
  const bool is_effective = run.effective() >= kBar;
  fmt::print("  effective training time ratio {:.3f} ({} iterations of {:.1f} ms in {:.0f} s)  {} {:.2f}\n",
             run.effective(), run.curve.size(), static_cast<double>(run.iteration_ns) / 1e6,
             static_cast<double>(run.wall_ns) / 1e9, is_effective ? "ok, at least" : "MISSED, at least", kBar);
  const absl::Status whole = CheckWhole(run.curve, iterations);
  GP_ASSIGN_OR_RETURN(const std::string alone, NumbersAlone(*federation, iterations));
  const bool same = NumbersOf(run.curve) == alone;
  fmt::print("  {} of {} iterations told{}; losses and gradient norms: {}\n", run.curve.size(), iterations,
             whole.ok() ? "" : fmt::format(" ({})", std::string(whole.message())),
             same ? "same bits as undisturbed  ok" : "OTHERS than undisturbed  MISSED");
  *met = is_effective && same && whole.ok();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("chaos_bench", "Faults at random instants of a run.");
  set.Add("seed", &flags.seed, "N", "Of the faults.");
  set.Add("minutes", &flags.minutes, "N", "How long.");
  set.AddDuration("every", &flags.every_ns, "Between two faults, on average.");
  set.Add("svg", &flags.svg, "FILE", "The picture is written there.");
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
