// Compares the memory that whole ranks really take with the planner's model of it. No rank has a byte more than the
// model says: a plan that fits in the model must neither fail when it is prepared nor while it runs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/runtime/worker/memory_run.h"

namespace geopipe {
namespace {

constexpr double kTolerance = 0.05;
constexpr double kCategoryTolerance = 0.02;

std::vector<MemorySetting> Settings() {
  using enum ScheduleKind;
  return {
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .sequence = 64},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 4, .sequence = 32, .tied = true},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 1, .sequence = 64},
      {.kind = kOneFOneB, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 32, .tied = true},
      {.kind = kOneFOneB, .sites = "abc", .delta_n = {0, 0}, .batch = 2, .sequence = 64, .comm = CommMode::kBlocking},
      {.kind = kGpipe, .sites = "ab", .delta_n = {0}, .batch = 1, .sequence = 32},
      {.kind = kGpipe, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 64, .tied = true},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .sequence = 64},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {6}, .batch = 8, .sequence = 16},
      {.kind = kGeoPipe, .sites = "abc", .delta_n = {1, 3}, .batch = 1, .sequence = 128},
      {.kind = kGeoPipe, .sites = "aabb", .delta_n = {4}, .batch = 4, .sequence = 32, .tied = true},
      {.kind = kGeoPipe, .sites = "abcd", .delta_n = {2, 0, 2}, .batch = 2, .sequence = 64},
      {.kind = kGeoPipe, .sites = "abcd", .delta_n = {1, 1, 1}, .batch = 2, .sequence = 64, .latency_ns = 0},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2, .sequence = 128, .tied = true, .clips = false},
      {.kind = kZbH1, .sites = "abcd", .delta_n = {0, 0, 0}, .batch = 2, .sequence = 64},
      {.kind = kGeoPipeZb, .sites = "abc", .delta_n = {1, 2}, .batch = 2, .documents = Documents::kReset},
      {.kind = kZbH2, .sites = "abc", .delta_n = {0, 0}, .batch = 2, .sequence = 32, .tied = true},
      {.kind = kGeoPipeZb, .sites = "abc", .delta_n = {2, 2}, .batch = 1, .sequence = 64},
  };
}

// Tensor ranks, and what makes a stage keep less.
std::vector<MemorySetting> DividedSettings() {
  using enum ScheduleKind;
  using enum Recompute;
  constexpr auto kBf16 = Precision::kBf16;
  return {
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .recompute = {kSelective}},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .recompute = {kFull, kFull}},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2, .recompute = {kSelective, kNone}},
      {.kind = kGeoPipeZb, .sites = "ab", .delta_n = {2}, .batch = 2, .recompute = {kSelective, kSelective}},
      {.kind = kGeoPipeZb, .sites = "ab", .delta_n = {2}, .batch = 2, .recompute = {kFull, kFull}},
      {.kind = kGeoPipeZb,
       .sites = "ab",
       .delta_n = {1},
       .batch = 2,
       .tensor = 2,
       .sequence_parallel = true,
       .recompute = {kFull, kSelective}},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .precision = kBf16},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 4, .tied = true, .precision = kBf16},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .recompute = {kFull, kSelective},
       .precision = kBf16},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .tensor = 2},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .tensor = 2},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .tensor = 4},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2, .sequence_parallel = true},
      {.kind = kGeoPipeZb, .sites = "ab", .delta_n = {2}, .batch = 2, .tensor = 2, .sequence_parallel = true},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 4, .sequence_parallel = true},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tensor = 2, .recompute = {kFull, kFull}},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .sequence_parallel = true,
       .recompute = {kFull, kSelective}},
  };
}

std::vector<MemorySetting> ReplicatedSettings() {
  using enum ScheduleKind;
  using enum Recompute;
  constexpr auto kBf16 = Precision::kBf16;
  return {
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 0},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 1},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 2},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .data = 2, .zero_stage = 3},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .data = 2, .zero_stage = 1},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .tied = true, .data = 2, .zero_stage = 3},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 2, .nodes = true, .zero_stage = 2},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 3, .zero_stage = 3, .precision = kBf16},
      {.kind = kGeoPipe, .sites = "ab", .delta_n = {2}, .batch = 2, .data = 4, .zero_stage = 2, .precision = kBf16},
      {.kind = kOneFOneB, .sites = "ab", .delta_n = {0}, .batch = 2, .tensor = 2, .data = 2, .zero_stage = 1},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .data = 2,
       .zero_stage = 3,
       .sequence_parallel = true,
       .recompute = {kSelective, kFull},
       .precision = kBf16},
      {.kind = kGeoPipeZb,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tensor = 2,
       .data = 2,
       .nodes = true,
       .zero_stage = 2,
       .recompute = {kSelective, kNone}},
      {.kind = kOneFOneB, .sites = "a", .delta_n = {}, .batch = 2, .offloads_optimizer = true},
      {.kind = kGeoPipe,
       .sites = "ab",
       .delta_n = {2},
       .batch = 2,
       .tied = true,
       .precision = kBf16,
       .offloads_optimizer = true},
      {.kind = kOneFOneB,
       .sites = "ab",
       .delta_n = {0},
       .batch = 2,
       .tensor = 2,
       .data = 2,
       .zero_stage = 3,
       .precision = kBf16,
       .offloads_optimizer = true},
  };
}

double Difference(int64_t measured, int64_t modelled) {
  return modelled == 0 ? (measured == 0 ? 0.0 : 1.0)
                       : static_cast<double>(measured - modelled) / static_cast<double>(modelled);
}

TEST_CASE("every rank's measured peak is within 5 % of the model, and never above it") {
  UseLoopbackDevice();
  const TempDir folder;
  const std::string text_path = WriteText(folder);
  fmt::print("{:<72} {:>4} {:>11} {:>11} {:>8}   activations, workspace, transport\n", "configuration", "rank",
             "measured", "modelled", "differ");
  std::vector<MemorySetting> settings = Settings();
  std::ranges::move(DividedSettings(), std::back_inserter(settings));
  std::ranges::move(ReplicatedSettings(), std::back_inserter(settings));
  for (const MemorySetting& setting : settings) {
    INFO(setting.name());
    const JobSpec job = JobOf(setting, text_path);
    const Plan plan = PlanOf(setting, job.model);
    const Schedule schedule = ScheduleOf(plan);
    const std::vector<RankMemory> modelled = MemoryOfRanks(job, plan, schedule);
    MemoryRun ranks(setting, job, plan, schedule);
    const absl::Status status = ranks.Run(PeaksOf(modelled));
    INFO(status.ToString());
    CHECK(status.ok());
    for (int32_t rank = 0; status.ok() && rank < plan.grid.size(); ++rank) {
      const RankMemory& model = modelled[plan.grid.At(rank).pipeline];
      const RankMemory& measured = ranks.peaks(rank);
      const double difference = Difference(measured.peak, model.peak);
      fmt::print(
          "{:<72} {:>4} {:>11} {:>11} {:>+7.2f}%   {:+.2f}% {:+.2f}% {:+.2f}%\n", rank == 0 ? setting.name() : "", rank,
          measured.peak, model.peak, 100 * difference, 100 * Difference(measured.activations, model.activations),
          100 * Difference(measured.workspace, model.workspace), 100 * Difference(measured.transport, model.transport));
      INFO("rank " << rank);
      CHECK(ranks.prepared_bytes(rank) <= model.peak);
      CHECK(difference <= 0);
      CHECK((setting.nodes || difference >= -kTolerance));  // slots of messages fill up with large buckets alone
      CHECK(measured.weights == model.weights);
      CHECK(measured.gradients == model.gradients);
      CHECK(measured.optimizer == model.optimizer);
      CHECK(measured.host == model.host);
      CHECK(measured.transport <= model.transport);
      CHECK(std::abs(Difference(measured.activations, model.activations)) <= kCategoryTolerance);
      CHECK(std::abs(Difference(measured.workspace, model.workspace)) <= kCategoryTolerance);
    }
  }
}

TEST_CASE("a copy of a processor's states for a checkpoint does not count as memory of its host") {
  UseLoopbackDevice();
  const TempDir folder;
  const MemorySetting setting{.kind = ScheduleKind::kOneFOneB,
                              .sites = "a",
                              .delta_n = {},
                              .batch = 2,
                              .offloads_optimizer = GENERATE(false, true)};
  const JobSpec job = JobOf(setting, WriteText(folder));
  const Plan plan = PlanOf(setting, job.model);
  const Schedule schedule = ScheduleOf(plan);
  const std::vector<RankMemory> modelled = MemoryOfRanks(job, plan, schedule);
  CHECK((modelled[0].host > 0) == setting.offloads_optimizer);
  auto snapshot = std::make_unique<RankSnapshot>();
  MemoryObserver observer;
  observer.at_end = [&](int32_t, RankJob& rank) { CHECK(rank.CopyState(*snapshot).ok()); };
  MemoryRun ranks(setting, job, plan, schedule);
  REQUIRE(ranks.Run(PeaksOf(modelled), {}, observer).ok());
  snapshot = nullptr;
  CHECK(ranks.peaks(0).host == modelled[0].host);
}

TEST_CASE("a stage that gets a twentieth less than the model says does not fit") {
  UseLoopbackDevice();
  const TempDir folder;
  const MemorySetting setting{.kind = ScheduleKind::kGeoPipe, .sites = "ab", .delta_n = {3}, .batch = 2};
  const JobSpec job = JobOf(setting, WriteText(folder));
  const Plan plan = PlanOf(setting, job.model);
  const Schedule schedule = ScheduleOf(plan);
  for (size_t short_stage = 0; short_stage < 2; ++short_stage) {
    std::vector<int64_t> limits = PeaksOf(MemoryOfRanks(job, plan, schedule));
    limits[short_stage] -= limits[short_stage] / 20;
    const absl::Status status = MemoryRun(setting, job, plan, schedule).Run(limits);
    CHECK(absl::IsResourceExhausted(status));
  }
}

}  // namespace
}  // namespace geopipe
