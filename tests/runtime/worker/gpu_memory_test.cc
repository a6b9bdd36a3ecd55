// Compares the memory that whole ranks on emulated GPUs really take, of the device and of the host, with the planner's
// model of it, and gives them as much and less.
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "optimizer/model/capabilities.h"
#include "optimizer/model/gpu_workspace.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"
#include "runtime/worker/checkpoint_writer.h"
#include "tests/runtime/worker/memory_run.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

constexpr double kEnough = 1.02;  // of what is planned
constexpr double kTooLittle = 0.9;

// The host's memory for parameters on their way, which a small model does not fill.
constexpr int64_t kPiecesBytes = 2 * kParameterPieceBytes;

std::vector<MemorySetting> Settings() {
  using enum ScheduleKind;
  using enum Recompute;
  constexpr auto kBf16 = Precision::kBf16;
  std::vector<MemorySetting> settings{
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .sequence = 256, .precision = kBf16},
      {.kind = kGpipe, .sites = "ab", .delta_n = {0}, .batch = 2, .tied = true, .documents = Documents::kReset},
      {.kind = kGeoPipe, .sites = "abc", .delta_n = {1, 1}, .tied = true, .precision = kBf16},
      {.kind = kZbH2, .sites = "ab", .delta_n = {0}, .precision = kBf16, .family = ModelFamily::kQwen3, .biases = true},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .recompute = {kSelective, kFull}},
      {.kind = kOneFOneB,
       .sites = "ab",
       .delta_n = {0},
       .comm = CommMode::kBlocking,
       .tensor = 2,
       .sequence_parallel = true,
       .recompute = {kNone, kSelective}},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .tensor = 4},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {1}, .data = 2, .zero_stage = 3, .precision = kBf16},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .precision = kBf16, .offloads_optimizer = true},
  };
  if (kSanitized) {
    settings.resize(3);
  }
  for (MemorySetting& setting : settings) {
    setting.layers = std::ssize(setting.sites) + 1;
    setting.micro_batches = 4;
    setting.evaluates = false;
    setting.latency_ns = 2 * kMs;
    setting.gpu_library = EmulatedGpuLibrary();
  }
  return settings;
}

struct PlannedRun {
  PlannedRun(const MemorySetting& wanted, const std::string& text_path,
             const std::function<void(JobSpec&)>& change = nullptr)
      : setting(wanted), job(JobOf(wanted, text_path)), plan(PlanOf(wanted, job.model)), schedule(ScheduleOf(plan)) {
    if (change) {
      change(job);
    }
    planned = MemoryOfRanks(JobOnBackend(job, BackendKind::kCuda), plan, schedule);
  }

  // So much of what is planned, by pipeline rank.
  std::vector<int64_t> Limits(double share) const { return Of(&RankMemory::peak, share, 0); }
  std::vector<int64_t> HostLimits(double share) const {
    const int64_t largest = kFp32Bytes * job.model.vocab_size * job.model.hidden_size;
    return Of(&RankMemory::host, share, kPiecesBytes - (share < 1 ? 0 : 2 * largest));
  }
  std::vector<int64_t> Of(int64_t RankMemory::*bytes, double share, int64_t unused) const {
    std::vector<int64_t> limits;
    for (const RankMemory& rank : planned) {
      limits.push_back(std::llround(share * static_cast<double>(rank.*bytes - unused)));
    }
    return limits;
  }
  MemoryRun Ranks() const { return {setting, job, plan, schedule}; }

  MemorySetting setting;
  JobSpec job;
  Plan plan;
  Schedule schedule;
  std::vector<RankMemory> planned;
};

// A rank's calls of its device, and all plans that the library has made, before an iteration.
struct Asked {
  Device::Counts counts;
  int64_t plans = 0;
};

void CheckMeasured(const RankMemory& measured, const RankMemory& planned) {
  CHECK(measured.weights == planned.weights);
  CHECK(measured.gradients == planned.gradients);
  CHECK(measured.optimizer == planned.optimizer);
  CHECK(measured.recovery == 0);
  CHECK(measured.workspace <= planned.workspace);
  CHECK(measured.workspace >= planned.workspace - 1024);
  CHECK(measured.transport <= planned.transport);
  CHECK(measured.peak <= planned.peak);
  CHECK(static_cast<double>(measured.peak - kGpuProductWorkspaceBytes) >=
        0.92 * static_cast<double>(planned.peak - kGpuProductWorkspaceBytes));
  CHECK(measured.host <= planned.host);
  // Blocks that are kept ready count where blocks are kept at all.
  CHECK((!kKeepsBlocks || measured.host >= planned.host - kPiecesBytes - 1024));
}

TEST_CASE(
    "ranks on GPUs train within 1.02 times the device's and the host's memory that is planned, and from the second "
    "iteration on neither takes any nor makes a plan") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  for (const MemorySetting& setting : Settings()) {
    INFO(setting.name());
    const EmulatedGpu gpu("seed=3");
    const PlannedRun run(setting, text_path);
    MemoryRun ranks = run.Ranks();
    std::mutex mutex;
    std::vector<std::vector<Asked>> asked(static_cast<size_t>(run.plan.grid.size()));
    MemoryObserver observer;
    observer.on_state = [&](int32_t rank, const RankJob& job, int64_t) {
      const std::lock_guard lock(mutex);
      asked[rank].push_back({job.allocator().device().counts(), gpu.counters().plans});
    };
    const bool limits_host = !setting.offloads_optimizer && setting.sites.size() > 1;
    const absl::Status status =
        ranks.Run(run.Limits(kEnough), limits_host ? run.HostLimits(kEnough) : std::vector<int64_t>(), observer);
    INFO(status);
    REQUIRE(status.ok());
    for (int32_t rank = 0; rank < run.plan.grid.size(); ++rank) {
      INFO("rank " << rank);
      CheckMeasured(ranks.peaks(rank), run.planned[run.plan.grid.At(rank).pipeline]);
      const std::vector<Asked>& before = asked[rank];
      REQUIRE(before.size() == 4);
      CHECK(before.front().plans > 0);
      CHECK(before.back().plans == before.front().plans);
      if (kKeepsBlocks) {
        CHECK(before.front().counts.allocations > 0);
        CHECK(before.back().counts.allocations == before[1].counts.allocations);
        CHECK(before.back().counts.host_allocations == before[1].counts.host_allocations);
      }
    }
  }
}

TEST_CASE("ranks on GPUs are refused before they train where a device or its host has 0.9 times what is planned") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  const std::vector<MemorySetting> settings = Settings();
  for (const MemorySetting& setting : {settings[1], settings[2]}) {
    const PlannedRun run(setting, text_path);
    const std::vector<int64_t> all(run.planned.size(), 0);
    for (const bool of_host : {false, true}) {
      INFO(setting.name() << (of_host ? ", host" : ""));
      if (of_host && !kKeepsBlocks) {
        continue;  // the host's are those that are kept ready
      }
      const EmulatedGpu gpu;
      bool trains = false;
      const std::vector<int64_t> limits = of_host ? run.HostLimits(kTooLittle) : run.Limits(kTooLittle);
      const absl::Status status =
          run.Ranks().Run(of_host ? all : limits, of_host ? limits : all,
                          {.on_state = [&](int32_t, const RankJob&, int64_t) { trains = true; }});
      CHECK(absl::IsResourceExhausted(status));
      CHECK_FALSE(trains);
      const std::string sentence(status.message());
      CHECK_THAT(sentence,
                 Catch::Contains(of_host ? " bytes of the host's memory that the device may move data through, "
                                         : " do not fit into the device's memory of ") &&
                     Catch::EndsWith("or a smaller micro-batch or sequence"));
      CHECK_THAT(sentence, !Catch::Contains("\n"));
    }
  }
}

TEST_CASE("the host has what a GPU's rank keeps of its states for recovery and for checkpoints, and not the device") {
  UseLoopbackDevice();
  const TempDir folder;
  MemorySetting setting = Settings().front();
  setting.offloads_optimizer = GENERATE(false, true);
  const std::string text_path = WriteText(folder);
  const PlannedRun plain(setting, text_path);
  const PlannedRun run(setting, text_path, [&](JobSpec& job) {
    job.recovery = Recovery::kMemory;
    job.checkpoint.path = folder.path() + "/checkpoints";
  });
  const int64_t parameters = ParameterCount(run.job.model);
  CHECK(run.planned[0].host == plain.planned[0].host + (24 + 12) * parameters);
  CHECK(run.planned[0].peak == plain.planned[0].peak);
  const EmulatedGpu gpu;
  KeptStates kept = *KeptStates::Open(UniqueFd(memfd_create("gpu-memory-test", MFD_CLOEXEC)));
  auto snapshot = std::make_unique<RankSnapshot>();
  MemoryRun ranks = run.Ranks();
  MemoryObserver observer;
  observer.at_end = [&](int32_t, RankJob& job) {
    CHECK(job.KeepState().ok());
    CHECK(job.CopyState(*snapshot).ok());
  };
  const absl::Status status = ranks.Run(run.Limits(kEnough), {}, observer, &kept);
  INFO(status);
  REQUIRE(status.ok());
  snapshot = nullptr;
  CheckMeasured(ranks.peaks(0), run.planned[0]);
}

}  // namespace
}  // namespace geopipe
