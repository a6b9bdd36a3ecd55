// Training that goes on from a checkpoint on another grid is the training that never stopped: to the bit where both
// grids add in the order of the one that never stopped, else to the precision of sums in another order.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/state/checkpoint_sources.h"
#include "runtime/checkpoint/state/state_snapshot.h"
#include "runtime/checkpoint/verify.h"
#include "tests/runtime/checkpoint/state/taken_snapshot.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr double kLossTolerance = 2e-5;
constexpr int64_t kGridIterations = 5;
constexpr int32_t kGrids = kSanitized ? 6 : 18;

// Trains to the end of the options and leaves a checkpoint of the result.
GridResult TrainAndSave(GridOptions options, const std::string& root) {
  const std::string folder = *BeginCheckpoint(root, options.iterations);
  CheckpointManifest manifest = ManifestOf(options.model, options.iterations);
  std::mutex mutex;
  options.at_end = [&](const Rank& /*rank*/, TransformerStage& stage,
                       const TransformerStageOptions& of_stage) -> absl::Status {
    StateSnapshot snapshot;
    GP_RETURN_IF_ERROR(
        TakeSnapshot(snapshot, of_stage.model, of_stage.layers, stage.parameters().all(), of_stage.sharding));
    std::vector<FileEntry> files;
    GP_RETURN_IF_ERROR(snapshot.Write(folder, "1-1", files));
    const std::lock_guard lock(mutex);
    std::ranges::move(files, std::back_inserter(manifest.files));
    return absl::OkStatus();
  };
  GridResult result = TrainGrid(options);
  INFO(result.status);
  REQUIRE(result.status.ok());
  const absl::Status written = WriteCheckpointManifest(folder, manifest);
  INFO(written);
  REQUIRE(written.ok());
  CHECK(VerifyCheckpoint(folder)->empty());
  return result;
}

GridResult GoOn(GridOptions options, const std::string& root, int64_t from) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(CheckpointFolder(root, from));
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->CheckSameModel(options.model).ok());
  CheckpointState state(*std::move(checkpoint));
  options.state = &state;
  options.first_iteration = from;
  GridResult result = TrainGrid(options);
  INFO(result.status);
  REQUIRE(result.status.ok());
  return result;
}

void CheckRandomGoingOn(bool tied, int64_t kv_heads, int32_t count) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  double farthest = 0;
  int32_t same_bits = 0;
  for (int32_t i = 0; i < count; ++i) {
    GridOptions before = SmallGrid(tied, kv_heads);
    Randomise(random, before);
    before.iterations = Draw(random, 1, kGridIterations - 1);
    GridOptions after = SmallGrid(tied, kv_heads);
    if (i % 3 == 0) {  // the same grid with another schedule, at least
      after = before;
    } else {
      Randomise(random, after);
    }
    after.iterations = kGridIterations;
    INFO("GEOPIPE_TEST_SEED=" << seed << ", number " << i << ": " << before.name() << " to iteration "
                              << before.iterations << ", then " << after.name());
    const TempDir root;
    const std::vector<double> first = TrainAndSave(before, root.path()).losses;
    const std::vector<double> rest = GoOn(after, root.path(), before.iterations).losses;
    std::vector<double> losses = first;
    losses.insert(losses.end(), rest.begin(), rest.end());
    GridOptions unbroken = after;
    const bool is_one_order = OrderOf(before) == OrderOf(after);
    if (!is_one_order) {
      unbroken = SmallGrid(tied, kv_heads);
      unbroken.iterations = kGridIterations;
    }
    const std::vector<double> expected = TrainGrid(unbroken).losses;
    REQUIRE(expected.size() == kGridIterations);
    if (is_one_order) {
      CHECK(losses == expected);
      ++same_bits;
    } else {
      CHECK(Farthest(losses, expected) <= kLossTolerance);
      farthest = std::max(farthest, Farthest(losses, expected));
    }
  }
  fmt::print("seed {}: {} times the same bits, losses of {} others within {:.1e} of one process\n", seed, same_bits,
             count - same_bits, farthest);
}

TEST_CASE("a random grid goes on where another has stopped: grouped-query heads") {
  CheckRandomGoingOn(false, 2, kGrids);
}
TEST_CASE("a random grid goes on where another has stopped: tied embeddings") { CheckRandomGoingOn(true, 4, kGrids); }
TEST_CASE("a random grid goes on where another has stopped: a key-value head that ranks share") {
  CheckRandomGoingOn(true, 1, kGrids);
}

}  // namespace
}  // namespace geopipe
