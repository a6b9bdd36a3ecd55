// Checks on a GPU what the tests show on an emulated one, in minutes: see docs/gpu.md.
//
//   device_check kernels --library bin/libgeopipe_cuda.so --out /tmp/found --seed 7 --budget 60
//
// Exit codes: 0: all checks hold; 1: one does not, or the phase could not go on; 2: the command line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "tests/device/phases.h"

namespace geopipe {

bool DeviceCheckOptions::IsOver() const { return Clock::Real().NowNs() - begin_ns > budget_ns; }

double DeviceCheckOptions::SecondsSoFar() const { return static_cast<double>(Clock::Real().NowNs() - begin_ns) / 1e9; }

namespace {

struct Phase {
  std::string_view name;
  absl::StatusOr<int64_t> (*run)(const DeviceCheckOptions& options);
};

constexpr std::array kPhases = {
    Phase{"versions", CheckVersions}, Phase{"kernels", CheckKernels},
    Phase{"training", CheckTraining}, Phase{"digest", PrintDigest},  // training's own
    Phase{"groups", CheckGroups},     Phase{"speed", MeasureSpeed},
};

absl::Status ParseFlags(int argc, char** argv, DeviceCheckOptions& options, FlagSet& flags) {
  int64_t budget_s = 600;
  flags.AddPositional("PHASE", &options.phase, /*required=*/true, "versions, kernels, training, groups or speed.");
  flags.AddPath("library", &options.library, "FILE", "The GPU library; by default the one beside the program.");
  flags.AddPath("out", &options.folder, "DIR", "Where tables are written.");
  flags.Add("small", &options.small, "Shapes that an emulated GPU computes in seconds.");
  flags.Add("seed", &options.seed, "N", "Of shapes and values.");
  flags.AddParsed("precision", "PRECISION", "", "Of a digest.", [&](std::string_view text) {
    options.precision = text == "bf16" ? Precision::kBf16 : Precision::kFp32;
    return absl::OkStatus();
  });
  flags.Add("budget", &budget_s, "SECONDS", "Time for the phase; what does not fit is left out.");
  const absl::Status status = flags.Parse(argc - 1, argv + 1);
  options.budget_ns = budget_s * 1'000'000'000;
  options.processors = static_cast<int>(std::thread::hardware_concurrency());
  options.begin_ns = Clock::Real().NowNs();
  return status;
}

int Main(int argc, char** argv) {
  DeviceCheckOptions options;
  options.folder = ".";
  FlagSet flags("device_check", "Checks what a GPU computes.");
  if (const absl::Status status = ParseFlags(argc, argv, options, flags); !status.ok()) {
    fmt::print(stderr, "device_check: {}\n", std::string(status.message()));
    return 2;
  }
  if (flags.help_requested()) {
    fmt::print("{}", flags.Help());
    return 0;
  }
  const auto* phase = std::ranges::find(kPhases, options.phase, &Phase::name);
  if (phase == kPhases.end()) {
    fmt::print(stderr, "device_check: '{}' is no phase; see --help\n", options.phase);
    return 2;
  }
  const absl::StatusOr<int64_t> failed = phase->run(options);
  std::fflush(stdout);
  if (!failed.ok()) {
    fmt::print(stderr, "{}: {}\n", options.phase, std::string(failed.status().message()));
    return 1;
  }
  return *failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
