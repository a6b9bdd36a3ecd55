#include "runtime/model/parameters.h"

#include <catch2/catch.hpp>

#include "runtime/model/init.h"
#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

std::vector<std::string> Names(const ModelSpec& model, const LayerRange& range) {
  std::vector<std::string> names;
  for (const ParameterTensor& spec : ParameterTensors(model, range)) {
    names.push_back(spec.name);
  }
  return names;
}

TEST_CASE("every range knows the tensors it holds by their Hugging Face names") {
  const ModelSpec untied = SmallOptions(false).model;
  CHECK(Names(untied, {.first = 4, .last = 4}) ==
        std::vector<std::string>{"model.layers.4.input_layernorm.weight", "model.layers.4.self_attn.q_proj.weight",
                                 "model.layers.4.self_attn.k_proj.weight", "model.layers.4.self_attn.v_proj.weight",
                                 "model.layers.4.self_attn.o_proj.weight",
                                 "model.layers.4.post_attention_layernorm.weight",
                                 "model.layers.4.mlp.gate_proj.weight", "model.layers.4.mlp.up_proj.weight",
                                 "model.layers.4.mlp.down_proj.weight"});
  CHECK(Names(untied, {.has_embedding = true}) == std::vector<std::string>{"model.embed_tokens.weight"});
  CHECK(Names(untied, {.has_head = true}) == std::vector<std::string>{"model.norm.weight", "lm_head.weight"});
  const ModelSpec tied = SmallOptions(true).model;
  CHECK(Names(tied, {.has_head = true}) == std::vector<std::string>{"model.norm.weight", "model.embed_tokens.weight"});
}

TEST_CASE("parameters read out under their names, what is not there is an error") {
  Allocator allocator(1 << 24);
  const auto backend = *CpuBackend::Create(1, allocator);
  RandomWeights weights(3);
  const auto buckets = ParameterBuckets(SmallOptions(false).model, {.first = 1, .last = 1});
  auto set = ParameterSet::Create(buckets, {}, weights, allocator, *backend);
  REQUIRE(set.ok());
  std::vector<float> expected(24 * 24);
  std::vector<float> values(24 * 24);
  REQUIRE(weights.Read("model.layers.1.self_attn.q_proj.weight", {24, 24}, expected).ok());
  REQUIRE(set->Read("model.layers.1.self_attn.q_proj.weight", {24, 24}, values).ok());
  CHECK(values == expected);
  CHECK(set->Read("model.layers.0.self_attn.q_proj.weight", {24, 24}, values).code() == absl::StatusCode::kNotFound);
  CHECK(set->Read("model.layers.1.self_attn.q_proj.weight", {12, 48}, values).code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace geopipe
