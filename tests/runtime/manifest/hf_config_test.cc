#include "runtime/manifest/hf_config.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/files.h"
#include "tests/support/temp_dir.h"

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
  INFO(model.status().ToString());
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

TEST_CASE("The config of Llama-2 7B, as transformers writes it, is its preset") {
  const auto model = ParseHfConfig(R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": [
    "LlamaForCausalLM"
  ], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": true,
  "vocab_size": 32000
})",
                                   "c");
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  CHECK(*model == *ModelPreset("llama-2-7b"));
}

// config.json of Llama 3.1 8B, Mistral 7B v0.1, Qwen2.5 0.5B and Qwen3 0.6B with the keys that they are published with.
TEST_CASE("The configs of other families are their presets") {
  const auto [text, preset] = GENERATE(table<std::string, std::string>({
      {R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
 "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
 "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
 "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
 "tie_word_embeddings": false, "vocab_size": 128256})",
       "llama-3.1-8b"},
      {R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "hidden_act": "silu", "hidden_size": 4096,
 "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
 "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})",
       "mistral-7b-v0.1"},
      {R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 896,
 "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
 "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
 "use_sliding_window": false, "vocab_size": 151936})",
       "qwen2.5-0.5b"},
      {R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
 "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
 "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
 "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
 "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})",
       "qwen3-0.6b"},
  }));
  const auto model = ParseHfConfig(text, "c");
  INFO(preset << ": " << model.status().ToString());
  REQUIRE(model.ok());
  CHECK(*model == *ModelPreset(preset));
}

TEST_CASE("What a family's config.json leaves out has the defaults of its class") {
  const auto of = [](const std::string& family, const std::string& more) {
    return ParseHfConfig(R"({"model_type": ")" + family + R"(", "hidden_size": 4096, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 64, "vocab_size": 258)" +
                             more + "}",
                         "c");
  };
  CHECK(of("mistral", "")->num_key_value_heads == 8);
  CHECK(of("mistral", "")->sliding_window == 4096);
  CHECK(of("mistral", R"(, "sliding_window": null, "num_key_value_heads": null)")->sliding_window == 0);
  CHECK(of("mistral", R"(, "sliding_window": null, "num_key_value_heads": null)")->num_key_value_heads == 64);
  CHECK(of("qwen2", "")->num_key_value_heads == 32);
  CHECK(of("qwen2", R"(, "sliding_window": 4096, "use_sliding_window": false)")->sliding_window == 0);
  CHECK(of("qwen2", "")->has_qkv_bias());
  CHECK(of("qwen3", "")->head_dim() == 128);
  CHECK(of("qwen3", R"(, "head_dim": null)")->head_dim() == 64);
  CHECK(of("qwen3", "")->has_head_norms());
  CHECK(of("llama", R"(, "head_dim": 96, "attention_bias": true)")->has_output_bias());
}

TEST_CASE("Rotary frequencies are scaled as versions 4 and 5 of transformers spell it") {
  const RopeScaling linear{.type = RopeScaling::Type::kLinear, .factor = 8};
  for (const std::string given :
       {R"("rope_scaling": {"type": "linear", "factor": 8.0})",
        R"("rope_scaling": {"rope_type": "linear", "factor": 8})",
        R"("rope_parameters": {"rope_type": "linear", "factor": 8, "rope_theta": 10000.0})"}) {
    INFO(given);
    CHECK(ParseHfConfig(Config(", " + given), "c").value().rope_scaling == linear);
  }
  const auto newer =
      ParseHfConfig(Config(R"(, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
 "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"),
                    "c");
  INFO(newer.status().ToString());
  REQUIRE(newer.ok());
  CHECK(newer->rope_theta == 500000);
  CHECK(newer->rope_scaling == ModelPreset("llama-3.2-1b")->rope_scaling);
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
  const auto newer = ParseHfConfig(
      Config(R"(, "rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}, "rope_scaling": {"type": "default"},
                "sliding_window": 4096, "use_sliding_window": false, "layer_types": ["full_attention"])"),
      "c");
  INFO(newer.status().ToString());
  REQUIRE(newer.ok());
  CHECK(newer->rope_theta == 7);
}

TEST_CASE("A config that is written is read back") {
  ModelSpec model = *ModelPreset("llama-2-70b");
  model.tie_word_embeddings = true;
  model.rope_theta = 500000.5;
  CHECK(ParseHfConfig(FormatHfConfig(model, "bfloat16"), "c").value() == model);
  for (const std::string& name : ModelPresetNames()) {
    INFO(FormatHfConfig(*ModelPreset(name), "bfloat16"));
    CHECK(ParseHfConfig(FormatHfConfig(*ModelPreset(name), "bfloat16"), "c").value() == *ModelPreset(name));
  }
}

TEST_CASE("What the engine does not compute is refused with place, key, value and remedy") {
  CHECK(ConfigError("[1]") == "config.json:1:1: no JSON object; it must be a model's config.json");
  CHECK(ConfigError("{\"a\": ") ==
        "config.json:1:7: not valid JSON: the end of the file stands where a value is needed");
  CHECK(ConfigError("{}") == "config.json: hidden_size: missing; every model needs it");
  CHECK(ConfigError(Config(R"(, "num_key_value_heads": "two")")) ==
        "config.json:2:94: num_key_value_heads: is the text 'two'; write the value without quotes");
  CHECK(ConfigError(Config(R"(, "tie_word_embeddings": "true")")) ==
        "config.json:2:94: tie_word_embeddings: is the text 'true'; write the value without quotes");
  CHECK(ConfigError(R"({"model_type": "gpt2"})") ==
        "config.json:1:16: model_type: is 'gpt2'; supported are llama, mistral, qwen2, qwen3");
  CHECK(ConfigError(Config(R"(, "num_key_value_heads": 3)")) ==
        "config.json:2:94: num_key_value_heads: is 3; it must divide model.num_attention_heads 4");
  CHECK(ConfigError(Config(R"(, "head_dim": 31)")) ==
        "config.json:2:83: head_dim: is 31; RoPE turns pairs, so it must be even");
  CHECK(ConfigError(Config(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0})")) ==
        "config.json:2:87: rope_scaling.low_freq_factor: missing; rope_type llama3 needs it");
  CHECK(ConfigError(R"({"model_type": "mistral", "attention_bias": true, "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 258})") ==
        "config.json:1:45: attention_bias: is true; a mistral model has none");
  const auto [given, key] = GENERATE(table<std::string, std::string>({
      {R"("mlp_bias": true)", "mlp_bias"},
      {R"("hidden_act": "gelu")", "hidden_act"},
      {R"("attention_dropout": 0.1)", "attention_dropout"},
      {R"("pretraining_tp": 2)", "pretraining_tp"},
      {R"("use_sliding_window": true, "sliding_window": 4096)", "use_sliding_window"},
      {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor"},
      {R"("quantization_config": {"quant_method": "gptq", "bits": 4})", "quantization_config"},
      {R"("rope_scaling": {"factor": 2})", "rope_scaling.factor"},
      {R"("rope_scaling": "linear")", "rope_scaling"},
      {R"("rope_scaling": {"type": "dynamic", "factor": 8.0})", "rope_scaling.type"},
      {R"("rope_scaling": {"rope_type": "linear", "factor": 8.0, "low_freq_factor": 1})", "low_freq_factor"},
      {R"("rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]})", "rope_type"},
      {R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5})", "rope_type"},
      {R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})", "partial_rotary_factor"},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})", "rope_parameters.full_attention"},
      {R"("rope_theta": 7, "rope_parameters": {"rope_type": "default", "rope_theta": 8})",
       "rope_parameters.rope_theta"},
      {R"("num_local_experts": 8)", "num_local_experts"},
      {R"("n_routed_experts": 256)", "n_routed_experts"},
      {R"("attn_logit_softcapping": 50.0)", "attn_logit_softcapping"},
      {R"("embedding_multiplier": 12.0)", "embedding_multiplier"},
      {R"("text_config": {"hidden_size": 64})", "text_config"},
      {R"("hidden_size": 0)", "hidden_size"},
      {R"("rms_norm_eps": -1)", "rms_norm_eps"},
  }));
  const std::string error = ConfigError("{" + given + "}");
  CAPTURE(given, error);
  CHECK(error.find(key + ": is ") != std::string::npos);
  CHECK(error.starts_with("config.json:1:"));
}

TEST_CASE("Another family of models is refused by its name, wherever it stands") {
  const auto [given, error] = GENERATE(table<std::string, std::string>({
      {R"("attention_bias": true, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe")",
       "config.json:1:43: architectures: names Qwen2MoeForCausalLM; supported are LlamaForCausalLM, "
       "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"},
      {R"("model_type": "mistral", "architectures": ["LlamaForCausalLM"])",
       "config.json:1:16: model_type: is 'mistral'; architectures names LlamaForCausalLM, of another family"},
      {R"("hidden_act": "gelu", "model_type": "mixtral", "num_local_experts": 8)",
       "config.json:1:38: model_type: is 'mixtral'; supported are llama, mistral, qwen2, qwen3"},
      {R"("architectures": ["GemmaForCausalLM"])",
       "config.json:1:19: architectures: names GemmaForCausalLM; supported are LlamaForCausalLM, MistralForCausalLM, "
       "Qwen2ForCausalLM, Qwen3ForCausalLM"},
      {R"("architectures": "Phi3ForCausalLM")",
       "config.json:1:19: architectures: is 'Phi3ForCausalLM'; it must be a list of one"},
      {R"("architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"])",
       "config.json:1:19: architectures: is a list; it must be a list of one"},
      {R"("layer_types": ["full_attention", "sliding_attention"])",
       "config.json:1:36: layer_types: names sliding_attention; only full_attention is supported"},
      {R"("num_local_experts": 8)", "config.json:1:23: num_local_experts: is '8'; only 0 is supported"},
      {R"("hidden_act": "gelu")", "config.json:1:16: hidden_act: is 'gelu'; only silu is supported"},
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0})",
       "config.json:1:32: rope_scaling.rope_type: is 'yarn'; only default, linear or llama3 is supported"},
      {R"("quantization_config": {"bits": 4})",
       "config.json:1:25: quantization_config: is a map; only null is supported"},
  }));
  CHECK(ConfigError("{" + given + "}") == error);
}

TEST_CASE("With a head size of their own, heads need not divide the model") {
  const auto model = ParseHfConfig(
      R"({"hidden_size": 56, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 6,
 "num_key_value_heads": 2, "vocab_size": 160, "head_dim": 16})",
      "c");
  REQUIRE(model.ok());
  CHECK(model->query_width() == 96);
  CHECK(
      ConfigError(R"({"hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 48,
 "vocab_size": 160})") ==
      "config.json:1:94: num_attention_heads: is 48; head size (hidden_size / num_attention_heads) is then 1, it must "
      "be even");
}

TEST_CASE("Names may hold every character that JSON can escape") {
  CHECK(ParseHfConfig(Config(R"(, "_name_or_path": "tiny \ud83e\udd99 model")"), "c").ok());
}

TEST_CASE("What lies in the place of a model is named") {
  const TempDir dir;
  const auto error = [&] { return std::string(ReadHfConfig(dir.path()).status().message()); };
  CHECK(error() == "cannot read " + dir.path() + "/config.json: No such file or directory");
  dir.Write("adapter_config.json", "{}");
  CHECK(error() == dir.path() +
                       ": no config.json is there; it holds a LoRA adapter (adapter_config.json); merge it into "
                       "its base model first (merge_and_unload of peft)");
  const std::string gguf = dir.Write("m.gguf", "GGUF" + std::string(100, 'x'));
  CHECK(std::string(ReadHfConfig(gguf).status().message())
            .starts_with(gguf + ": no config.json is there; it is a GGUF file (llama.cpp); name a folder with"));
  dir.Write("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 13421\n");
  CHECK(error() == dir.path() +
                       "/config.json: is a Git LFS pointer, not JSON; fetch the file that it stands for: git "
                       "lfs pull");
}

TEST_CASE("A job's model must be that of the directory") {
  const TempDir dir;
  ModelSpec model = *ModelPreset("llama-2-7b");
  dir.Write("config.json", FormatHfConfig(model, "float32"));
  model.max_position_embeddings = 128;
  CHECK(CheckSameModel(model, dir.path()).ok());
  model.rope_theta = 5000;
  CHECK(CheckSameModel(model, dir.path()).message() ==
        "model.rope_theta is 5000, but " + dir.path() + " says 10000; leave the key out");
  CHECK(CheckSameModel(model, "/nowhere").message() == "cannot read /nowhere/config.json: No such file or directory");
}

}  // namespace
}  // namespace geopipe
