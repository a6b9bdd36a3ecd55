#include "tests/runtime/model/small_models.h"

#include <random>

#include "optimizer/model/transformer.h"

namespace geopipe {

absl::Status RandomTokens::Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                                std::span<int32_t> targets) {
  for (int64_t i = 0; i < samples; ++i) {
    std::mt19937 random(static_cast<uint32_t>(1000 * iteration + first_sample + i));
    const auto next = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size_)); };
    int32_t token = next();
    for (int64_t j = 0; j < sequence_; ++j) {
      inputs[i * sequence_ + j] = token;
      token = next();
      targets[i * sequence_ + j] = token;
    }
  }
  return absl::OkStatus();
}

absl::Status LargeRandomWeights::Read(std::string_view name, const std::vector<int64_t>& shape,
                                      std::span<float> values) {
  // Reads norms as a matrix too, so that they get random numbers.
  const absl::Status status = random_.Read(name, {1, static_cast<int64_t>(values.size())}, values);
  for (float& value : values) {
    value = shape.size() < 2 ? 1 + 10 * value : 12 * value;
  }
  return status;
}

std::vector<LayerRange> Split(const ModelSpec& model, int64_t stages) { return SplitLayers(model, stages); }

void SetFamily(int variant, ModelSpec& model) {
  if (variant == 1) {
    model.family = ModelFamily::kQwen2;
  }
  if (variant == 2 || variant == 4) {
    model.family = ModelFamily::kQwen3;
    model.given_head_dim = model.head_dim() + 2;
  }
  if (variant >= 3) {
    model.attention_bias = true;
    model.padded_vocab_size = model.vocab_size;
    model.vocab_size -= 5;
    model.rope_scaling = {.type = RopeScaling::Type::kLlama3,
                          .factor = 3,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_position_embeddings = 40};
  }
}

TransformerStageOptions SmallOptions(bool tied) {
  TransformerStageOptions options;
  options.model = {.hidden_size = 24,
                   .intermediate_size = 40,
                   .num_hidden_layers = 6,
                   .num_attention_heads = 6,
                   .num_key_value_heads = 2,
                   .vocab_size = 37,
                   .max_position_embeddings = 64,
                   .tie_word_embeddings = tied};
  options.micro_batch_size = 2;
  options.sequence_length = 10;
  options.micro_batches = 4;
  options.training = {.iterations = 10,
                      .tokens_per_iteration = 80,
                      .learning_rate = 1e-2,
                      .warmup_iterations = 2,
                      .min_learning_rate = 1e-3,
                      .weight_decay = 0.1,
                      .grad_clip = 0.5};
  return options;
}

}  // namespace geopipe
