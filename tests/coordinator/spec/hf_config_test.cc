#include "coordinator/spec/hf_config.h"

#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

std::string Config(const std::string& more) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
             "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 258)" +
         more + "}";
}

std::string ConfigError(const std::string& text) {
  const absl::StatusOr<ModelSpec> model = ParseHfConfig(text, "config.json");
  return model.ok() ? "" : std::string(model.status().message());
}

TEST_CASE("What a config.json leaves out has Hugging Face's defaults") {
  const auto model = ParseHfConfig(Config(""), "config.json");
  REQUIRE(model.ok());
  CHECK(*model == ModelSpec{.hidden_size = 64,
                            .intermediate_size = 128,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 4,
                            .num_key_value_heads = 4,
                            .vocab_size = 258,
                            .max_position_embeddings = 2048,
                            .rope_theta = 10000,
                            .rms_norm_eps = 1e-6,
                            .tie_word_embeddings = false});
}

TEST_CASE("Every key of a config.json counts") {
  const auto model = ParseHfConfig(
      Config(R"(, "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
                "tie_word_embeddings": true, "rope_scaling": null, "head_dim": 16)"),
      "config.json");
  REQUIRE(model.ok());
  CHECK(model->num_key_value_heads == 2);
  CHECK(model->max_position_embeddings == 512);
  CHECK(model->rope_theta == 5e5);
  CHECK(model->rms_norm_eps == 1e-5);
  CHECK(model->tie_word_embeddings);
  const auto newer = ParseHfConfig(Config(R"(, "rope_parameters": {"rope_theta": 7, "rope_type": "default"})"), "c");
  REQUIRE(newer.ok());
  CHECK(newer->rope_theta == 7);
}

TEST_CASE("What the engine does not compute is refused") {
  CHECK(ConfigError("[1]") == "config.json: not a JSON object; it must be a model's config.json");
  CHECK(ConfigError("{") == "config.json: not a JSON object; it must be a model's config.json");
  CHECK(ConfigError("{}") == "config.json: hidden_size is missing; a Llama model needs it");
  CHECK(ConfigError(Config(R"(, "num_key_value_heads": "two")")) ==
        R"(config.json: num_key_value_heads is "two"; it must be an integer)");
  CHECK(ConfigError(R"({"model_type": "gpt2"})") ==
        R"(config.json: model_type is "gpt2"; only "llama" is supported (the engine computes Llama models))");
  CHECK(ConfigError(Config(R"(, "attention_bias": true)")) ==
        "config.json: attention_bias is true; only false is supported (the engine has no biases)");
  CHECK(ConfigError(Config(R"(, "rope_scaling": {"factor": 2})")) ==
        "config.json: rope_scaling is given; scaled rotary embeddings are not supported");
  CHECK(ConfigError(Config(R"(, "head_dim": 32)")) ==
        "config.json: head_dim is 32; only 16 is supported (hidden_size / num_attention_heads)");
  CHECK(ConfigError(Config(R"(, "num_key_value_heads": 3)")) ==
        "config.json: model.num_key_value_heads is 3; it must divide model.num_attention_heads 4");
}

}  // namespace
}  // namespace geopipe
