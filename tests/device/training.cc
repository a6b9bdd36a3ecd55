#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/plan/space/choices.h"
#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "runtime/gpu/gpu_backend.h"
#include "tests/device/device_grid.h"

namespace geopipe {
namespace {

// Iterations on the device, on the processor, and of each run that has to have the bits of the device's first ones.
struct Lengths {
  int64_t on_device = 0;
  int64_t on_processor = 0;
  int64_t of_others = 0;
};
Lengths LengthsOf(const DeviceCheckOptions& options, Precision precision) {
  if (options.small) {
    return {.on_device = 4, .on_processor = 4, .of_others = 3};
  }
  return {.on_device = precision == Precision::kFp32 ? 20 : 50, .on_processor = 6, .of_others = 3};
}

// Counts of a rank's device and backend when an iteration begins.
struct Costs {
  Device::Counts counts;
  int64_t plans = 0;
};

// Trains, and checks that from the second iteration on a rank waits once in each and makes nothing. REQUIRES: three.
absl::StatusOr<GridResult> TrainAndCount(std::string_view thing, GridOptions grid, Report& report) {
  std::mutex mutex;
  std::vector<std::vector<Costs>> costs(static_cast<size_t>(grid.grid.size()));
  grid.on_begin = [&](int32_t rank, const Device& device, const Backend& backend) {
    const std::scoped_lock lock(mutex);
    costs[static_cast<size_t>(rank)].push_back(
        {.counts = device.counts(), .plans = dynamic_cast<const GpuBackend&>(backend).plans_built()});
  };
  GP_ASSIGN_OR_RETURN(GridResult result, Train(grid));
  for (size_t rank = 0; rank < costs.size(); ++rank) {
    const Costs& first = costs[rank][1];
    const Costs& last = costs[rank].back();
    const int64_t iterations = std::ssize(costs[rank]) - 2;
    const auto check = [&](std::string_view what, int64_t count, int64_t expected) {
      report.CheckCount(fmt::format("{}, rank {}: {} in iterations 2 to {}", thing, rank, what, iterations + 1), count,
                        expected);
    };
    check("waits", last.counts.waits - first.counts.waits, iterations);
    check("allocations of the device", last.counts.allocations - first.counts.allocations, 0);
    if (grid.grid.pipeline == 1) {  // the network among threads, unlike workers', lands messages in memory of their own
      check("allocations of pinned memory", last.counts.host_allocations - first.counts.host_allocations, 0);
    }
    check("plans", last.plans - first.plans, 0);
  }
  return result;
}

struct Variant {
  std::string name;
  std::function<void(GridOptions&)> change;
};

// Runs that differ in what may not matter to the bits.
std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{"a second run", [](GridOptions&) {}}};
  const auto add_schedule = [&](std::string name, ScheduleKind schedule, int32_t pipeline, int32_t stages_per_rank,
                                int32_t delta_n) {
    variants.push_back({std::move(name), [=](GridOptions& grid) {
                          grid.schedule = schedule;
                          grid.grid.pipeline = pipeline;
                          grid.stages_per_rank = stages_per_rank;
                          grid.delta_n = delta_n;
                        }});
  };
  add_schedule("zb-h1 (split backward) of 1 stage", ScheduleKind::kZbH1, 1, 1, 0);
  add_schedule("gpipe of 2 stages", ScheduleKind::kGpipe, 2, 1, 0);
  add_schedule("1f1b of 2 stages", ScheduleKind::kOneFOneB, 2, 1, 0);
  add_schedule("zb-h1 of 2 stages", ScheduleKind::kZbH1, 2, 1, 0);
  add_schedule("interleaved of 2 x 2 stages", ScheduleKind::kInterleaved, 2, 2, 0);
  for (const int32_t delta_n : {1, 2, 3}) {
    add_schedule(fmt::format("geopipe of 2 stages, delta_n {}", delta_n), ScheduleKind::kGeoPipe, 2, 1, delta_n);
  }
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    variants.push_back({fmt::format("recompute {}", RecomputeName(recompute)),
                        [=](GridOptions& grid) { grid.recompute = {recompute}; }});
  }
  return variants;
}

// The bits that another process of this program has.
absl::StatusOr<std::string> DigestOfAnotherProcess(const DeviceCheckOptions& options, Precision precision) {
  const std::string out = options.folder + "/digest.txt";
  std::remove(out.c_str());
  ProcessSpec spec = {.program = "/proc/self/exe",
                      .args = {"digest", "--library", options.library, "--out", options.folder, "--seed",
                               std::to_string(options.seed), "--precision", std::string(NameOf(precision))},
                      .stdout_path = out};
  if (options.small) {
    spec.args.emplace_back("--small");
  }
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  const std::optional<ExitStatus> end = process.Wait(-1);
  if (!end->success()) {
    return absl::InternalError(fmt::format("a second process {}", end->Description()));
  }
  constexpr size_t kMaxBytes = 1 << 20;
  return ReadFile(out, kMaxBytes);
}

absl::StatusOr<GridResult> TrainShortly(const DeviceCheckOptions& options, Precision precision) {
  GridOptions grid = OnDevice(ModelOf(options, precision), options);
  grid.iterations = LengthsOf(options, precision).of_others;
  return Train(grid);
}

void CompareLosses(std::string_view thing, const GridResult& actual, const GridResult& expected, double tolerance,
                   Report& report) {
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    if (i < expected.losses.size()) {
      report.Check(fmt::format("{}: loss of iteration {}, {:.9g} on the device, {:.9g} on the processor", thing, i + 1,
                               actual.losses[i], expected.losses[i]),
                   std::abs(actual.losses[i] - expected.losses[i]) / expected.losses[i], tolerance);
    } else {
      report.Note(fmt::format("{}: loss of iteration {}", thing, i + 1), fmt::format("{:.9g}", actual.losses[i]));
    }
  }
}

absl::Status CheckTrainingIn(const DeviceCheckOptions& options, Precision precision, Report& report) {
  const std::string name(NameOf(precision));
  const Lengths lengths = LengthsOf(options, precision);
  GridOptions host = ModelOf(options, precision);
  host.iterations = lengths.on_processor;
  const GridOptions short_one = [&] {
    GridOptions grid = OnDevice(host, options);
    grid.iterations = lengths.of_others;
    return grid;
  }();
  GridOptions long_one = short_one;
  long_one.iterations = lengths.on_device;
  GP_ASSIGN_OR_RETURN(const GridResult expected, Train(host));
  GP_ASSIGN_OR_RETURN(const GridResult base, TrainAndCount(name, long_one, report));
  CompareLosses(name, base, expected, precision == Precision::kFp32 ? 1e-4 : 1e-2, report);
  for (const Variant& variant : Variants()) {
    const std::string thing = fmt::format("{}, {}", name, variant.name);
    if (options.IsOver()) {
      report.LeaveOut(thing);
      continue;
    }
    GridOptions grid = short_one;
    variant.change(grid);
    GP_ASSIGN_OR_RETURN(const GridResult result, TrainAndCount(thing, grid, report));
    CheckSameBits(thing, result, base, report);
  }
  GP_ASSIGN_OR_RETURN(const GridResult here, TrainShortly(options, precision));
  GP_ASSIGN_OR_RETURN(const std::string there, DigestOfAnotherProcess(options, precision));
  CheckSameBits(name + ", once more", here, base, report);
  report.Check(name + ": bits of another process", there == DigestOf(here) + "\n");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CheckTraining(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(Report report, Report::Create(options.folder, "losses.tsv"));
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    GP_RETURN_IF_ERROR(CheckTrainingIn(options, precision, report));
  }
  fmt::print("{}\n", report.Summary("training", options.SecondsSoFar()));
  return report.failed();
}

absl::StatusOr<int64_t> PrintDigest(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(const GridResult result, TrainShortly(options, options.precision));
  fmt::print("{}\n", DigestOf(result));
  return 0;
}

}  // namespace geopipe
