// Simulates the control plane with each seed and says what was broken, by as few faults as it takes. Exits with 1 when
// something was, and with --expect-broken when nothing was. `simulate_control_plane --help` has the flags.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "tests/simulation/seeds.h"
#include "tests/simulation/shrink.h"
#include "tests/simulation/simulation.h"

namespace geopipe::simulation {
namespace {

absl::Status ParseSeeds(std::string_view text, SeedsOptions* options) {
  const auto parse = [](std::string_view number, uint64_t* value) {
    const char* end = number.data() + number.size();
    const auto [at, error] = std::from_chars(number.data(), end, *value);
    return error == std::errc() && at == end;
  };
  const size_t dash = std::min(text.find('-'), text.size());
  const std::string_view last = dash == text.size() ? text : text.substr(dash + 1);
  if (!parse(text.substr(0, dash), &options->first) || !parse(last, &options->last) || options->last < options->first) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is no range of seeds; give one as in 1-2000, or one seed", text));
  }
  return absl::OkStatus();
}

// A check of the product that fails ends the program: says with which seed. Called once.
void NameSeed(int /*signal*/) {
  std::array<char, 32> text{};
  char* const end = std::to_chars(text.data(), text.data() + text.size() - 1, SeedUnderWay()).ptr;
  *end = '\n';
  constexpr std::string_view kPrefix = "with seed ";
  [[maybe_unused]] const ssize_t prefix = write(STDERR_FILENO, kPrefix.data(), kPrefix.size());
  [[maybe_unused]] const ssize_t seed = write(STDERR_FILENO, text.data(), static_cast<size_t>(end + 1 - text.data()));
}

int Run(const SeedsOptions& options, bool trace) {
  const auto begin = std::chrono::steady_clock::now();
  std::mutex mutex;  // one report at a time
  const Tally tally = SimulateSeeds(options, [&](const Options& each, const Outcome& outcome) {
    if (options.stop_at_broken) {
      return;
    }
    const Outcome shrunk = Shrink(each, outcome);
    const std::lock_guard lock(mutex);
    fmt::print("{}", Report(each, shrunk));
    if (trace) {
      Options traced = each;
      traced.trace = true;
      Simulate(traced, shrunk.faults);
    }
    std::fflush(stdout);
  });
  if (options.stop_at_broken && tally.first_broken.has_value()) {
    fmt::print("found by seed {}: {}\n", tally.first_broken->first, tally.first_broken->second);
    return 0;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Outcome& sum = tally.sum;
  fmt::print(
      "seeds {}-{}: {} broken; {:.1f} simulated hours, {} events, {} epochs, {} iterations of ranks, {} jobs "
      "completed, {} failed; {} of {} pairs of a transition and a fault; {:.1f} s\n",
      options.first, options.last, tally.broken, static_cast<double>(sum.simulated_ns) * 1e-9 / 3600, sum.events,
      sum.epochs, sum.iterations, sum.completed, sum.failed, sum.coverage.pairs(), Coverage::possible(), seconds);
  return tally.broken == 0 && !options.stop_at_broken ? 0 : 1;
}

int Main(int argc, char** argv) {
  SeedsOptions options;
  options.jobs = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  options.show_progress = true;
  bool trace = false;
  FlagSet flags("simulate_control_plane", "Simulates the control plane from seeds, with faults.");
  flags.AddParsed("seeds", "FIRST-LAST", "1-100", "Which.",
                  [&](std::string_view text) { return ParseSeeds(text, &options); });
  flags.Add("jobs", &options.jobs, "N", "Seeds that run at the same time.");
  flags.Add("faults", &options.each.faults, "N", "Of each seed.");
  flags.Add("kinds", &options.each.kinds, "N", "The first of faults.cc's list.");
  flags.AddDuration("duration", &options.each.duration_ns, "Simulated time with faults.");
  flags.Add("trace", &trace, "Shows what happens with the fewest faults that break a rule, process by process.");
  flags.Add("expect-broken", &options.stop_at_broken, "Ends, well, at the first seed that breaks a rule.");
  absl::Status status = flags.Parse(argc - 1, argv + 1);
  if (status.ok() && flags.help_requested()) {
    fmt::print("{}", flags.Help());
    return 0;
  }
  if (status.ok() && options.jobs < 1) {
    status = absl::InvalidArgumentError(fmt::format("--jobs: {} is less than 1", options.jobs));
  }
  if (constexpr int kKinds = static_cast<int>(FaultKind::kCount);
      status.ok() && (options.each.kinds < 1 || options.each.kinds > kKinds)) {
    status = absl::InvalidArgumentError(fmt::format("--kinds: {} is not from 1 to {}", options.each.kinds, kKinds));
  }
  if (!status.ok()) {
    fmt::print(stderr, "simulate_control_plane: {}\n", std::string(status.message()));
    return 2;
  }
  InitLogging({.program = "simulate_control_plane", .quiet = true});
  std::signal(SIGABRT, NameSeed);
  return Run(options, trace);
}

}  // namespace
}  // namespace geopipe::simulation

int main(int argc, char** argv) { return geopipe::simulation::Main(argc, argv); }
