// Models that are quick to train, and what they are trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"

namespace geopipe {

// Tokens drawn at random per (iteration, sample), whatever the order of reading.
class RandomTokens final : public TokenSource {
 public:
  RandomTokens(int64_t vocab_size, int64_t sequence_length) : vocab_size_(vocab_size), sequence_(sequence_length) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override;

 private:
  int64_t vocab_size_;
  int64_t sequence_;
};

// Weights far larger than a fresh model's, norms unlike 1: every path carries a gradient.
class LargeRandomWeights final : public WeightSource {
 public:
  explicit LargeRandomWeights(uint64_t seed) : random_(seed) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

 private:
  RandomWeights random_;
};

// `stages` stages over the model's layers, as even as the planner makes them.
std::vector<LayerRange> Split(const ModelSpec& model, int64_t stages);

// Gives a model what other families have: `variant` 0 nothing, 1 biases of q, k and v, 2 norms of heads that are not
// hidden / heads wide, 3 biases of all four, a padded vocabulary and llama3's frequencies, 4 all of these but biases of
// q, k and v alone.
inline constexpr int kFamilyVariants = 5;
void SetFamily(int variant, ModelSpec& model);

// A small model with grouped-query heads, two micro-batches per iteration and every feature of the update in use.
TransformerStageOptions SmallOptions(bool tied);

}  // namespace geopipe
