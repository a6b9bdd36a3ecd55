// Grids of ranks on seeded devices that have as much memory as the planner's model says, or less. The host's memory,
// and the GPU's own workspace: tests/runtime/worker/gpu_memory_test.cc.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/runtime/executor/grid_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr double kEnough = 1.02;
constexpr double kTooLittle = 0.9;

GridOptions DeepGrid(ScheduleKind schedule, int32_t pipeline) {
  GridOptions options;
  options.model = {.hidden_size = 16,
                   .intermediate_size = 48,
                   .num_hidden_layers = 16,
                   .num_attention_heads = 4,
                   .num_key_value_heads = 2,
                   .vocab_size = 64,
                   .max_position_embeddings = 64};
  options.sequence_length = 32;
  options.training.tokens_per_iteration = int64_t{6} * 2 * 32;
  options.training.learning_rate = 0.001;
  options.grid.pipeline = pipeline;
  options.schedule = schedule;
  options.iterations = 4;
  options.open_device = SeededGridDevices(TestSeed());
  return options;
}

std::vector<GridOptions> LimitedGrids() {
  using enum ScheduleKind;
  using enum Recompute;
  std::vector<GridOptions> grids;
  const auto add = [&](GridOptions grid, const std::function<void(GridOptions&)>& change = nullptr) {
    if (change) {
      change(grid);
    }
    grids.push_back(std::move(grid));
  };
  add(DeepGrid(kOneFOneB, 1));
  add(DeepGrid(kGpipe, 2), [](GridOptions& grid) { grid.model.tie_word_embeddings = true; });
  add(DeepGrid(kGeoPipe, 2), [](GridOptions& grid) {
    grid.delta_n = 2;
    grid.recompute = {kSelective, kNone};
    grid.precision = Precision::kBf16;
  });
  add(DeepGrid(kGeoPipeZb, 2), [](GridOptions& grid) { grid.delta_n = 1; });
  add(DeepGrid(kZbH2, 3), [](GridOptions& grid) { grid.model.family = ModelFamily::kQwen3; });
  add(DeepGrid(kZbV, 2), [](GridOptions& grid) { grid.stages_per_rank = 2; });
  add(DeepGrid(kInterleaved, 2), [](GridOptions& grid) { grid.stages_per_rank = 2; });
  add(DeepGrid(kOneFOneB, 2), [](GridOptions& grid) { grid.grid.tensor = 2; });
  add(DeepGrid(kOneFOneB, 2), [](GridOptions& grid) {
    grid.grid.tensor = 2;
    grid.sequence_parallel = true;
    grid.precision = Precision::kBf16;
  });
  add(DeepGrid(kOneFOneB, 2), [](GridOptions& grid) {
    grid.grid.data = 2;
    grid.zero_stage = 3;
  });
  return grids;
}

std::vector<int64_t> ShareOf(const std::vector<int64_t>& planned, double share) {
  std::vector<int64_t> bytes;
  for (const int64_t rank : planned) {
    bytes.push_back(std::llround(share * static_cast<double>(rank)));
  }
  return bytes;
}

TEST_CASE(
    "ranks on devices with 1.02 times the planned memory train, and from the second iteration on take none of it") {
  for (GridOptions grid : LimitedGrids()) {
    INFO(grid.name());
    const std::vector<int64_t> planned = PlannedBytes(grid);
    grid.limits = ShareOf(planned, kEnough);
    std::mutex mutex;
    std::vector<std::vector<int64_t>> allocations(static_cast<size_t>(grid.grid.size()));  // before each iteration
    grid.on_begin = [&](int32_t rank, const Device& device, const Backend&) {
      const std::lock_guard lock(mutex);
      allocations[rank].push_back(device.counts().allocations);
    };
    const GridResult result = TrainGrid(grid);
    INFO(result.status);
    REQUIRE(result.status.ok());
    for (int32_t rank = 0; rank < grid.grid.size(); ++rank) {
      INFO("rank " << rank);
      const int64_t of_rank = planned[grid.grid.At(rank).pipeline];
      CHECK(result.peak_bytes[rank] <= of_rank);
      CHECK(static_cast<double>(result.peak_bytes[rank]) >= 0.98 * static_cast<double>(of_rank));
      const std::vector<int64_t>& before = allocations[rank];
      REQUIRE(before.size() == 4);
      CHECK((!kKeepsBlocks || before.front() > 0));
      CHECK((!kKeepsBlocks || before.back() == before[1]));
    }
  }
}

TEST_CASE("ranks on devices with 0.9 times the planned memory are refused before they train") {
  for (GridOptions grid : LimitedGrids()) {
    INFO(grid.name());
    grid.limits = ShareOf(PlannedBytes(grid), kTooLittle);
    std::atomic<bool> trains = false;
    grid.on_begin = [&](int32_t, const Device&, const Backend&) { trains = true; };
    const GridResult result = TrainGrid(grid);
    INFO(result.status);
    CHECK(absl::IsResourceExhausted(result.status));
    CHECK_THAT(std::string(result.status.message()), Catch::StartsWith("iteration 0, ") &&
                                                         Catch::Contains(" do not fit into the device's memory of ") &&
                                                         Catch::EndsWith("or a smaller micro-batch or sequence"));
    CHECK_FALSE(trains);
  }
}

}  // namespace
}  // namespace geopipe
