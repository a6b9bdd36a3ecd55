#include "runtime/weights/hf_config.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// What transformers writes for Llama-2 7B, with what it also holds.
constexpr std::string_view kLlama2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
  "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0", "use_cache": true,
  "vocab_size": 32000})";

TEST_CASE("the config of Llama-2 7B is its preset") {
  const TempDir dir;
  dir.Write("config.json", kLlama2);
  const auto model = ReadHfConfig(dir.path());
  INFO(model.status());
  REQUIRE(model.ok());
  CHECK(*model == *ModelPreset("llama-2-7b"));
}

TEST_CASE("absent keys have the defaults of transformers") {
  const TempDir dir;
  dir.Write("config.json",
            R"({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "vocab_size": 100})");
  const auto model = ReadHfConfig(dir.path());
  REQUIRE(model.ok());
  CHECK(model->num_key_value_heads == 4);
  CHECK(model->max_position_embeddings == 2048);
  CHECK(model->rope_theta == 10000.0);
  CHECK(model->rms_norm_eps == 1e-6);
  CHECK_FALSE(model->tie_word_embeddings);
}

TEST_CASE("a config that is written is read back") {
  const TempDir dir;
  ModelSpec model = *ModelPreset("llama-2-70b");
  model.tie_word_embeddings = true;
  model.rope_theta = 500000.5;
  dir.Write("config.json", HfConfigJson(model, DType::kBf16));
  const auto read = ReadHfConfig(dir.path());
  REQUIRE(read.ok());
  CHECK(*read == model);
}

TEST_CASE("what is no plain Llama is refused by key and value") {
  const TempDir dir;
  const auto message = [&](std::string_view key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(kLlama2);
    config[std::string(key)] = value;
    dir.Write("config.json", config.dump());
    return std::string(ReadHfConfig(dir.path()).status().message());
  };
  const std::string path = dir.path() + "/config.json: ";
  const std::string end = " for a Llama model that can be trained here";
  CHECK(message("model_type", "gpt2") == path + "model_type is \"gpt2\"; it must be \"llama\"" + end);
  CHECK(message("attention_bias", true) == path + "attention_bias is true; it must be false" + end);
  CHECK(message("rope_scaling", {{"factor", 8.0}}) == path + "rope_scaling is {\"factor\":8.0}; it must be null" + end);
  CHECK(message("head_dim", 64) == path + "head_dim is 64; it must be 128" + end);
  CHECK(message("hidden_size", "big") == path + "hidden_size is \"big\"; it must be a whole number" + end);
  CHECK(message("rope_theta", "x") == path + "rope_theta is \"x\"; it must be a number" + end);
  CHECK(message("tie_word_embeddings", 1) == path + "tie_word_embeddings is 1; it must be true or false" + end);
  CHECK(message("vocab_size", nullptr) == path + "vocab_size is null; it must be a whole number" + end);
  CHECK(message("num_attention_heads", 0).starts_with(path));
  CHECK(message("num_key_value_heads", 5).starts_with(path));
}

TEST_CASE("no config, or none in JSON, is refused") {
  const TempDir dir;
  CHECK(ReadHfConfig(dir.path()).status().message() == dir.path() + "/config.json: no such file on this node");
  dir.Write("config.json", "hello");
  CHECK(ReadHfConfig(dir.path()).status().message() ==
        dir.path() + "/config.json: not a JSON object; name a Hugging Face directory");
}

TEST_CASE("a job's model must be that of the directory") {
  ModelSpec job = *ModelPreset("llama-2-7b");
  ModelSpec directory = job;
  job.max_position_embeddings = 128;
  CHECK(CheckSameModel(job, directory, "/m").ok());
  directory.rope_theta = 5000;
  CHECK(
      CheckSameModel(job, directory, "/m").message() ==
      "/m/config.json: rope_theta is 5000, but the job's model says 10000; make them the same, or leave out init_from");
}

}  // namespace
}  // namespace geopipe
