// Checks that every division of the model over ranks and every order of their work trains the same: against one process
// to the precision of sums in another order, and to the bit where the order of sums is said to be one.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/runtime/executor/grid_run.h"
#include "tests/runtime/executor/random_grid.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr double kLossTolerance = 2e-5;
constexpr double kNormTolerance = 1e-4;
constexpr int64_t kEvaluateEvery = 4;
constexpr int32_t kGrids = kSanitized ? 8 : 70;

void CheckRandomGrids(bool tied, int64_t kv_heads, int32_t count, int variant = 0,
                      std::optional<int64_t> document_end = std::nullopt) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  GridOptions options = SmallGrid(tied, kv_heads, variant);
  options.document_end = document_end;
  options.evaluate_every = kEvaluateEvery;
  std::map<int64_t, GridResult> alone;  // by micro-batch size
  std::map<SumOrder, GridResult> of_order;
  double farthest_loss = 0;
  double farthest_norm = 0;
  for (int32_t i = 0; i < count; ++i) {
    Randomise(random, options);
    INFO("GEOPIPE_TEST_SEED=" << seed << ", number " << i << ": " << options.name());
    if (!alone.contains(options.micro_batch_size)) {
      GridOptions single = SmallGrid(tied, kv_heads, variant);
      single.micro_batch_size = options.micro_batch_size;
      single.document_end = document_end;
      single.evaluate_every = kEvaluateEvery;
      alone[options.micro_batch_size] = TrainGrid(single);
      REQUIRE(alone[options.micro_batch_size].status.ok());
    }
    const GridResult& expected = alone[options.micro_batch_size];
    const GridResult result = TrainGrid(options);
    INFO(result.status);
    REQUIRE(result.status.ok());
    CHECK(Farthest(result.losses, expected.losses) <= kLossTolerance);
    CHECK(Farthest(result.norms, expected.norms) <= kNormTolerance);
    CHECK(Farthest(result.validation_losses, expected.validation_losses) <= kLossTolerance);
    farthest_loss = std::max(farthest_loss, Farthest(result.losses, expected.losses));
    farthest_norm = std::max(farthest_norm, Farthest(result.norms, expected.norms));
    const auto [same, is_first] = of_order.try_emplace(OrderOf(options), result);
    if (!is_first) {
      CHECK(result.losses == same->second.losses);
      CHECK(result.norms == same->second.norms);
      CHECK(result.validation_losses == same->second.validation_losses);
    }
  }
  fmt::print("seed {}: {} grids, {} orders of sums; losses within {:.1e}, norms within {:.1e} of one process\n", seed,
             count, of_order.size(), farthest_loss, farthest_norm);
}

TEST_CASE("random grids train like one process: grouped-query heads") { CheckRandomGrids(false, 2, kGrids); }
TEST_CASE("random grids train like one process: tied embeddings") { CheckRandomGrids(true, 4, kGrids); }
TEST_CASE("random grids train like one process: a key-value head that ranks share") {
  CheckRandomGrids(true, 1, kGrids);
}
TEST_CASE("random grids train like one process: biases of q, k and v") { CheckRandomGrids(false, 2, kGrids / 2, 1); }
TEST_CASE("random grids train like one process: norms of heads, and a key-value head that ranks share") {
  CheckRandomGrids(true, 1, kGrids / 2, 2);
}
TEST_CASE("random grids train like one process: all that families have besides, and a padded vocabulary") {
  CheckRandomGrids(true, 2, kGrids / 2, 4);
}
// One of the vocabulary's few tokens ends a document, so that most samples have several.
TEST_CASE("random grids train like one process: documents that attention does not cross") {
  CheckRandomGrids(false, 2, kGrids / 2, 0, 3);
}

}  // namespace
}  // namespace geopipe
