// simulate_control_plane [--seeds FIRST-LAST] [--faults N] [--seconds N] [--trace | --expect-broken]: simulates the
// control plane with each seed and says what was broken, by as few faults as it takes. Exits with 1 when something was.
// --trace shows what happens then, process by process; with --expect-broken it ends, well, at the first one.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/base/log.h"
#include "tests/simulation/simulation.h"

namespace {

int Usage() {
  fmt::print(stderr, "usage: simulate_control_plane [--seeds FIRST-LAST] [--faults N] [--seconds N] [--trace]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using geopipe::simulation::Options;
  using geopipe::simulation::Outcome;
  geopipe::InitLogging({.program = "simulate_control_plane", .level = geopipe::LogLevel::kError});
  Options options;
  bool expect_broken = false;
  uint64_t first = 1;
  uint64_t last = 100;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--trace") {
      options.trace = true;
    } else if (flag == "--expect-broken") {
      expect_broken = true;
    } else if (i + 1 == argc) {
      return Usage();
    } else if (flag == "--seeds") {
      const char* range = argv[++i];
      first = last = std::strtoull(range, nullptr, 10);
      if (const char* dash = std::strchr(range, '-')) {
        last = std::strtoull(dash + 1, nullptr, 10);
      }
    } else if (flag == "--faults") {
      options.faults = std::atoi(argv[++i]);
    } else if (flag == "--seconds") {
      options.duration_ns = std::strtoll(argv[++i], nullptr, 10) * 1'000'000'000;
    } else {
      return Usage();
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  Outcome sum;
  uint64_t broken = 0;
  for (options.seed = first; options.seed <= last; ++options.seed) {
    Options quiet = options;
    quiet.trace = false;
    const Outcome outcome = Simulate(quiet);
    sum.simulated_ns += outcome.simulated_ns;
    sum.events += outcome.events;
    sum.iterations += outcome.iterations;
    sum.completed += outcome.completed;
    sum.failed += outcome.failed;
    sum.epochs += outcome.epochs;
    if (!outcome.broken.empty() && expect_broken) {
      fmt::print("found by seed {}: {}\n", options.seed, outcome.broken);
      return 0;
    }
    if (!outcome.broken.empty()) {
      ++broken;
      const Outcome shrunk = Shrink(quiet, outcome);
      fmt::print("{}", Report(quiet, shrunk));
      if (options.trace) {
        Simulate(options, shrunk.faults);
      }
      std::fflush(stdout);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "seeds {}-{}: {} broken; {:.1f} simulated hours, {} events, {} epochs, {} iterations of ranks, {} jobs "
      "completed, {} failed; {:.1f} s\n",
      first, last, broken, static_cast<double>(sum.simulated_ns) * 1e-9 / 3600, sum.events, sum.epochs, sum.iterations,
      sum.completed, sum.failed, seconds);
  return broken == 0 && !expect_broken ? 0 : 1;
}
