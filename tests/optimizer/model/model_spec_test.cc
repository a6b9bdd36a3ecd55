#include "optimizer/model/model_spec.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>

namespace geopipe {
namespace {

TEST_CASE("presets are the published configurations") {
  const ModelSpec m70 = *ModelPreset("llama-2-70b");
  CHECK(m70.hidden_size == 8192);
  CHECK(m70.intermediate_size == 28672);
  CHECK(m70.num_hidden_layers == 80);
  CHECK(m70.num_attention_heads == 64);
  CHECK(m70.num_key_value_heads == 8);
  CHECK(m70.vocab_size == 32000);
  CHECK(m70.head_dim() == 128);
  CHECK_FALSE(m70.tie_word_embeddings);
  for (const std::string& name : ModelPresetNames()) {
    INFO(name);
    CHECK(ValidateModel(*ModelPreset(name)).ok());
  }
}

TEST_CASE("an unknown preset is answered with the known ones") {
  const absl::Status status = ModelPreset("llama-4-8b").status();
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK(
      std::string(status.message())
          .starts_with("model.preset \"llama-4-8b\" is not known; use one of llama-2-7b, llama-2-13b, llama-2-70b, "));
}

TEST_CASE("a model that cannot be built is refused by key and rule") {
  struct Case {
    std::function<void(ModelSpec&)> change;
    std::string_view message;
  };
  const Case cases[] = {
      {[](ModelSpec& m) { m.num_attention_heads = 33; },
       "model.num_attention_heads is 33; it must divide model.hidden_size 4096, or give model.head_dim"},
      {[](ModelSpec& m) { m.num_key_value_heads = 5; },
       "model.num_key_value_heads is 5; it must divide model.num_attention_heads 32"},
      {[](ModelSpec& m) { m.num_attention_heads = m.num_key_value_heads = 4096; },
       "model.num_attention_heads is 4096; head size (hidden_size / num_attention_heads) is then 1, it must be even"},
      {[](ModelSpec& m) { m.given_head_dim = 63; }, "model.head_dim is 63; RoPE turns pairs, so it must be even"},
      {[](ModelSpec& m) { m.padded_vocab_size = 31999; },
       "model.padded_vocab_size is 31999; it must be at least model.vocab_size 32000"},
      {[](ModelSpec& m) { m.sliding_window = 4096; },
       "model.sliding_window is 4096; a llama model has none, only mistral has"},
      {[](ModelSpec& m) {
         m.family = ModelFamily::kQwen2;
         m.attention_bias = true;
       },
       "model.attention_bias is true; a qwen2 model has none but those of q, k and v, which it always has"},
      {[](ModelSpec& m) { m.rope_scaling.factor = 8; },
       "model.rope_scaling.factor is 8; rope_type default does not use it, leave it out or give another rope_type"},
      {[](ModelSpec& m) { m.rope_scaling = {.type = RopeScaling::Type::kLinear, .factor = 8, .low_freq_factor = 2}; },
       "model.rope_scaling.low_freq_factor is 2; rope_type linear does not use it, leave it out or give another "
       "rope_type"},
      {[](ModelSpec& m) { m.rope_scaling = {.type = RopeScaling::Type::kLlama3, .low_freq_factor = 4}; },
       "model.rope_scaling.low_freq_factor is 4; it must be below model.rope_scaling.high_freq_factor 4"},
  };
  for (const Case& c : cases) {
    ModelSpec model = *ModelPreset("llama-2-7b");
    c.change(model);
    const absl::Status status = ValidateModel(model);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()) == std::string(c.message));
  }
}

}  // namespace
}  // namespace geopipe
