// Whatever divides the model over ranks, and whatever puts their work in order, trains the same: against one process
// to the precision of sums in another order, and to the bit where the order of sums is said to be one.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "tests/runtime/executor/grid_run.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr double kLossTolerance = 2e-5;
constexpr double kNormTolerance = 1e-4;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int32_t kGrids = 8;
#else
constexpr int32_t kGrids = 70;
#endif

GridOptions SmallGrid(bool tied, int64_t kv_heads) {
  GridOptions options;
  options.model = {.hidden_size = 16,
                   .intermediate_size = 24,
                   .num_hidden_layers = 6,
                   .num_attention_heads = 4,
                   .num_key_value_heads = kv_heads,
                   .vocab_size = 36,
                   .max_position_embeddings = 64,
                   .tie_word_embeddings = tied};
  options.training = {.iterations = 10,
                      .tokens_per_iteration = 24 * 8,
                      .learning_rate = 1e-2,
                      .warmup_iterations = 2,
                      .min_learning_rate = 1e-3,
                      .weight_decay = 0.1,
                      .grad_clip = 0.5};
  return options;
}

template <class T>
T OneOf(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[Draw(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

// Of a grid that fits 8 processes.
void Randomise(std::mt19937_64& random, GridOptions& options) {
  do {
    options.grid = {
        .pipeline = OneOf(random, {1, 2, 3}), .data = OneOf(random, {1, 2}), .tensor = OneOf(random, {1, 2, 4})};
  } while (options.grid.size() > 8);
  options.schedule = OneOf(
      random, {ScheduleKind::kOneFOneB, ScheduleKind::kGeoPipe, ScheduleKind::kInterleaved, ScheduleKind::kGeoPipeZb});
  options.stages_per_rank = options.schedule == ScheduleKind::kInterleaved ? 2 : 1;
  const bool runs_ahead = options.schedule == ScheduleKind::kGeoPipe || options.schedule == ScheduleKind::kGeoPipeZb;
  options.delta_n = runs_ahead ? static_cast<int32_t>(Draw(random, 0, 3)) : 0;
  options.zero_stage = static_cast<int32_t>(Draw(random, 0, 3));
  options.sequence_parallel = OneOf(random, {false, true});
  options.micro_batch_size = OneOf(random, {1, 2});
  options.attention = OneOf(random, {Attention::kDense, Attention::kBlocked});
  options.recompute.clear();
  for (int32_t rank = 0; rank < options.grid.pipeline; ++rank) {
    options.recompute.push_back(OneOf(random, {Recompute::kNone, Recompute::kSelective, Recompute::kFull}));
  }
}

// What must have the same bits.
using SumOrder = std::tuple<int32_t, int32_t, bool, int64_t, bool>;
SumOrder OrderOf(const GridOptions& options) {
  const auto& [pipeline, data, tensor] = options.grid;
  return {tensor, data, options.sequence_parallel && tensor > 1, options.micro_batch_size,
          options.zero_stage >= 2 && data > 1};
}

double Farthest(const std::vector<double>& values, const std::vector<double>& expected) {
  double farthest = values.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; farthest < 1 && i < values.size(); ++i) {
    farthest = std::max(farthest, std::abs(values[i] - expected[i]) / expected[i]);
  }
  return farthest;
}

void CheckRandomGrids(bool tied, int64_t kv_heads, int32_t count) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  GridOptions options = SmallGrid(tied, kv_heads);
  std::map<int64_t, GridResult> alone;  // by micro-batch size
  std::map<SumOrder, GridResult> of_order;
  double farthest_loss = 0;
  double farthest_norm = 0;
  for (int32_t i = 0; i < count; ++i) {
    Randomise(random, options);
    INFO("GEOPIPE_TEST_SEED=" << seed << ", number " << i << ": " << options.name());
    if (!alone.contains(options.micro_batch_size)) {
      GridOptions single = SmallGrid(tied, kv_heads);
      single.micro_batch_size = options.micro_batch_size;
      alone[options.micro_batch_size] = TrainGrid(single);
      REQUIRE(alone[options.micro_batch_size].status.ok());
    }
    const GridResult& expected = alone[options.micro_batch_size];
    const GridResult result = TrainGrid(options);
    INFO(result.status);
    REQUIRE(result.status.ok());
    CHECK(Farthest(result.losses, expected.losses) <= kLossTolerance);
    CHECK(Farthest(result.norms, expected.norms) <= kNormTolerance);
    farthest_loss = std::max(farthest_loss, Farthest(result.losses, expected.losses));
    farthest_norm = std::max(farthest_norm, Farthest(result.norms, expected.norms));
    const auto [same, is_first] = of_order.try_emplace(OrderOf(options), result);
    if (!is_first) {
      CHECK(result.losses == same->second.losses);
      CHECK(result.norms == same->second.norms);
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

}  // namespace
}  // namespace geopipe
