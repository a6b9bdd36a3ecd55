#include "tests/device/speed.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/compute/open.h"
#include "tests/device/phases.h"

namespace geopipe {

absl::StatusOr<Figure> SpeedRun::Measure(Allocator& allocator, Trial trial) {
  GP_ASSIGN_OR_RETURN(trial.row.figure, bench_->Measure(allocator, trial));
  Add(trial.row);
  return trial.row.figure;
}

void SpeedRun::LeaveOut(const std::string& name, std::string_view why) {
  left_out_.push_back(name);
  Tell(name, fmt::format("left out: {}", why));
}

absl::StatusOr<std::unique_ptr<SpeedEngine>> SpeedEngine::Open(SpeedRun& run) {
  auto engine = std::make_unique<SpeedEngine>(run);
  GP_ASSIGN_OR_RETURN(engine->backend, OpenBackend(BackendKind::kCuda, /*threads=*/1, engine->allocator));
  return engine;
}

namespace {

// Work that is not over so long after the budget's end hangs.
constexpr int64_t kGraceNs = 30'000'000'000;

// A part of the phase, and what it does that takes long.
struct Item {
  std::string name;
  std::function<absl::Status(SpeedRun& run)> measure;
  int64_t fixed_ns = 0;
  int64_t flops = 0;         // of the engine
  int64_t filled_bytes = 0;  // of a stage's states, by the host
};

// Returns how long the part may take. Estimates are off by a quarter.
int64_t NeedsNs(const Item& item, const EngineRates& rates) {
  const double seconds = static_cast<double>(item.flops) / rates.flops_per_s +
                         static_cast<double>(item.filled_bytes) / rates.fill_bytes_per_s;
  return item.fixed_ns + static_cast<int64_t>(1.25e9 * seconds);
}

Item LayerItem(const SpeedShape& shape, const SpeedSettings& settings) {
  const int64_t micro_batches = settings.rounds * settings.samples + 2 * settings.micro_batches;
  return {.name = fmt::format("layer {}", shape.name),
          .measure = [shape](SpeedRun& run) { return MeasureLayer(run, shape); },
          .fixed_ns = settings.item_ns,
          .flops = micro_batches * MicroBatchModelFlops(shape, 1),
          .filled_bytes = kFilledBytesOfParameter * LayerParameters(shape)};
}

Item IterationItem(const SpeedShape& shape, const SpeedSettings& settings, int32_t micro_batches) {
  const int64_t iterations = settings.rounds * settings.iterations + 1;
  return {.name = fmt::format("iteration {} m={}", shape.name, micro_batches),
          .measure = [shape, micro_batches](SpeedRun& run) { return MeasureIteration(run, shape, micro_batches); },
          .fixed_ns = settings.item_ns,
          .flops = iterations * micro_batches * MicroBatchModelFlops(shape, shape.model.num_hidden_layers),
          .filled_bytes = kFilledBytesOfParameter * ParameterCount(shape.model)};
}

// The most important come first. A layer comes behind its parts, which it is set against.
std::vector<Item> ItemsOf(const std::vector<SpeedShape>& shapes, const SpeedSettings& settings) {
  std::vector<Item> items;
  const auto add = [&](std::string_view what, const SpeedShape& shape,
                       absl::Status (*measure)(SpeedRun&, const SpeedShape&)) {
    items.push_back({.name = fmt::format("{} {}", what, shape.name),
                     .measure = [shape, measure](SpeedRun& run) { return measure(run, shape); },
                     .fixed_ns = settings.item_ns});
  };
  items.push_back(
      {.name = "ceilings", .measure = MeasureCeilings, .fixed_ns = settings.item_ns + settings.sustained_ns});
  for (const SpeedShape& shape : shapes) {
    add("products", shape, MeasureProducts);
    add("attention", shape, MeasureAttention);
    items.push_back(LayerItem(shape, settings));
    if (&shape == &shapes.front()) {
      items.push_back(IterationItem(shape, settings, settings.micro_batches));
    }
  }
  for (const SpeedShape& shape : shapes) {
    add("kernels", shape, MeasureKernels);
  }
  for (const SpeedShape& shape : shapes) {
    add("head", shape, MeasureHead);
  }
  items.push_back(IterationItem(shapes.front(), settings, settings.many_micro_batches));
  return items;
}

absl::Status RunItems(const std::vector<Item>& items, const Budget& budget, SpeedRun& run) {
  for (const Item& item : items) {
    const int64_t needs_ns = NeedsNs(item, run.rates);
    if (!budget.Allows(needs_ns)) {
      run.LeaveOut(item.name, fmt::format("it may take {}, for which there is no time", HumanDuration(needs_ns)));
      continue;
    }
    const absl::Status status = item.measure(run);
    if (absl::IsResourceExhausted(status)) {
      run.LeaveOut(item.name, std::string(status.message()));
      continue;
    }
    GP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::StatusOr<SpeedSettings> SettingsOn(GpuDevice& device, bool small, int64_t end_ns) {
  GP_RETURN_IF_ERROR(device.Enter());
  const GpRuntime& runtime = device.port().runtime;
  SpeedSettings settings = SettingsOf(small);
  GpDeviceProperties properties = {};
  GP_RETURN_IF_ERROR(device.StatusOf(runtime.device_properties(0, &properties), "reading its properties"));
  // Small operands are in any cache.
  settings.cache_bytes = small ? 1 : properties.l2_cache_bytes;
  int64_t total_bytes = 0;
  GP_RETURN_IF_ERROR(
      device.StatusOf(runtime.memory_info(&settings.memory_bytes, &total_bytes), "asking for its memory"));
  settings.deadline_ns = end_ns + kGraceNs;
  return settings;
}

std::string TitleOf(const DeviceVersions& versions) {
  return versions.cublas_lt.starts_with("emulated")
             ? "emulated: no figure of a GPU"
             : fmt::format("{}, {}, driver {}, {}, kernels {}", versions.name, versions.architecture, versions.driver,
                           versions.cublas_lt, versions.kernels.substr(0, 12));
}

}  // namespace

absl::StatusOr<int64_t> MeasureSpeed(const DeviceCheckOptions& options) {
  GP_ASSIGN_OR_RETURN(TsvTable table, TsvTable::Create(options.folder + "/speed.tsv", SpeedColumns()));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDevice> device, OpenDeviceOf(options));
  const int64_t end_ns = options.begin_ns + options.budget_ns;
  GP_ASSIGN_OR_RETURN(const SpeedSettings settings, SettingsOn(*device, options.small, end_ns));
  GP_ASSIGN_OR_RETURN(std::unique_ptr<SpeedBench> bench, SpeedBench::Create(*device, settings, options.seed));
  SpeedRun run(std::move(bench), std::move(table));
  const std::string title = TitleOf(device->versions());
  run.Tell("title", title);
  const Budget budget(Clock::Real(), end_ns);
  GP_RETURN_IF_ERROR(RunItems(ItemsOf(SpeedShapes(options.small), settings), budget, run));
  fmt::print("speed: {}; {}{} in {:.1f} s\n", title, fmt::join(run.headlines, "; "),
             run.left_out().empty() ? "" : fmt::format("; left out: {}", fmt::join(run.left_out(), ", ")),
             options.SecondsSoFar());
  return 0;
}

}  // namespace geopipe
