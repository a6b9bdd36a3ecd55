#include "tests/runtime/executor/random_grid.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tests/runtime/model/small_models.h"
#include "tests/support/random_pipeline.h"

namespace geopipe {
namespace {

template <class T>
T OneOf(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[Draw(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

}  // namespace

GridOptions SmallGrid(bool tied, int64_t kv_heads, int variant) {
  GridOptions options;
  options.model = {.hidden_size = 16,
                   .intermediate_size = 24,
                   .num_hidden_layers = 6,
                   .num_attention_heads = 4,
                   .num_key_value_heads = kv_heads,
                   .vocab_size = 36,
                   .max_position_embeddings = 64,
                   .tie_word_embeddings = tied};
  SetFamily(variant, options.model);
  options.training = {.iterations = 10,
                      .tokens_per_iteration = 24 * 8,
                      .learning_rate = 1e-2,
                      .warmup_iterations = 2,
                      .min_learning_rate = 1e-3,
                      .weight_decay = 0.1,
                      .grad_clip = 0.5};
  return options;
}

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
  options.offloads_optimizer = OneOf(random, {false, true});
  options.micro_batch_size = OneOf(random, {1, 2});
  options.recompute.clear();
  for (int32_t rank = 0; rank < options.grid.pipeline; ++rank) {
    options.recompute.push_back(OneOf(random, {Recompute::kNone, Recompute::kSelective, Recompute::kFull}));
  }
}

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

}  // namespace geopipe
