// Grids of ranks whose devices have memory and queues of their own, with groups staged through the host: they train
// with the processor's bits in every order of the queues.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/runtime/executor/grid_run.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

GridOptions TinyGrid(bool tied = false, int64_t kv_heads = 2) {
  GridOptions options = SmallGrid(tied, kv_heads);
  options.model.num_hidden_layers = 2;
  options.training.tokens_per_iteration = 8 * options.sequence_length;
  options.iterations = 3;
  options.evaluate_every = 2;
  return options;
}

// Grids that divide the work in each of the ways that a group serves.
std::vector<GridOptions> Grids() {
  std::vector<GridOptions> grids;
  const auto add = [&](GridOptions options, const std::function<void(GridOptions&)>& change) {
    change(options);
    grids.push_back(std::move(options));
  };
  add(TinyGrid(), [](GridOptions& grid) { grid.grid.tensor = 2; });
  add(TinyGrid(), [](GridOptions& grid) {
    grid.grid = {.pipeline = 2, .data = 1, .tensor = 2};
    grid.sequence_parallel = true;
    grid.precision = Precision::kBf16;
  });
  add(TinyGrid(/*tied=*/true, /*kv_heads=*/1), [](GridOptions& grid) {
    grid.grid.tensor = 2;
    grid.recompute = {Recompute::kFull};
  });
  for (int32_t zero_stage = 0; zero_stage <= 3; ++zero_stage) {
    add(TinyGrid(/*tied=*/zero_stage % 2 == 1), [&](GridOptions& grid) {
      grid.grid.data = 2;
      grid.zero_stage = zero_stage;
    });
  }
  add(TinyGrid(), [](GridOptions& grid) {
    grid.grid = {.pipeline = 1, .data = 2, .tensor = 2};
    grid.sequence_parallel = true;
    grid.zero_stage = 3;
    grid.precision = Precision::kBf16;
    grid.offloads_optimizer = true;
  });
  add(TinyGrid(/*tied=*/true), [](GridOptions& grid) {
    grid.grid = {.pipeline = 2, .data = 2, .tensor = 1};
    grid.schedule = ScheduleKind::kGeoPipeZb;
    grid.zero_stage = 2;
    grid.offloads_optimizer = true;
  });
  add(TinyGrid(), [](GridOptions& grid) {
    grid.grid = {.pipeline = 2, .data = 2, .tensor = 1};
    grid.zero_stage = 1;
    grid.precision = Precision::kBf16;
    grid.offloads_optimizer = true;
  });
  return grids;
}

bool SameBits(const GridResult& a, const GridResult& b) {
  return a.status.ok() && b.status.ok() && a.losses == b.losses && a.norms == b.norms &&
         a.validation_losses == b.validation_losses;
}

TEST_CASE("grids over devices have the processor's bits in every order of their queues") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  const std::vector<GridOptions> grids = Grids();
  const int seeds = std::max<int>(TestSeeds(), static_cast<int>(grids.size()));
  for (size_t i = 0; i < grids.size(); ++i) {
    GridOptions options = grids[i];
    const GridResult expected = TrainGrid(options);
    INFO(options.name() << ": " << expected.status);
    REQUIRE(SameBits(expected, expected));
    REQUIRE(!expected.validation_losses.empty());
    for (int number = static_cast<int>(i); number < seeds; number += static_cast<int>(grids.size())) {
      const uint64_t own_seed = seed + static_cast<uint64_t>(number);
      options.open_device = SeededGridDevices(own_seed);
      const GridResult actual = TrainGrid(options);
      INFO("seed " << own_seed << ": " << actual.status);
      CHECK(SameBits(actual, expected));
    }
  }
}

TEST_CASE("devices whose queues do not wait for each other are found out in a grid") {
  GridOptions options = TinyGrid();
  options.grid = {.pipeline = 1, .data = 2, .tensor = 2};
  options.zero_stage = 3;
  const GridResult expected = TrainGrid(options);
  bool found = false;
  for (uint64_t seed = 0; seed < 20 && !found; ++seed) {
    options.open_device = SeededGridDevices(seed, DeviceFault::kDropsAfter);
    found = !SameBits(TrainGrid(options), expected);
  }
  CHECK(found);
}

}  // namespace
}  // namespace geopipe
