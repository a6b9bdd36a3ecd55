#include "runtime/weights/hf_directory.h"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/model/transformer.h"
#include "runtime/manifest/hf_config.h"
#include "tests/runtime/weights/written_safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace geopipe {
namespace {

ModelSpec TestModel(bool tied) {
  ModelSpec model = TinyModel(3);
  model.hidden_size = 8;
  model.intermediate_size = 12;
  model.vocab_size = 10;
  model.tie_word_embeddings = tied;
  return model;
}

std::vector<ParameterTensor> AllTensors(const ModelSpec& model) {
  return ParameterTensors(model,
                          {.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true});
}

// Different in every tensor.
std::vector<float> ValuesOf(const ParameterTensor& tensor, int index) {
  std::vector<float> values(tensor.count());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<size_t>(index) * 7 + i) % 251) - 125.0F;
  }
  return values;
}

// The tensors [first, last) of the model as one file.
void WriteShard(const std::string& path, const ModelSpec& model, int first, int last) {
  const std::vector<ParameterTensor> tensors = AllTensors(model);
  std::vector<DeclaredTensor> declared;
  std::vector<std::vector<float>> values;
  for (int i = first; i < last; ++i) {
    declared.push_back({.name = tensors[i].name, .shape = tensors[i].shape});
    values.push_back(ValuesOf(tensors[i], i));
  }
  WriteSafetensors(path, declared, values);
}

// A directory of two shards and an index.
void WriteSharded(const TempDir& dir, const ModelSpec& model) {
  const std::vector<ParameterTensor> tensors = AllTensors(model);
  const int half = static_cast<int>(tensors.size()) / 2;
  WriteShard(dir.path() + "/model-00001-of-00002.safetensors", model, 0, half);
  WriteShard(dir.path() + "/model-00002-of-00002.safetensors", model, half, static_cast<int>(tensors.size()));
  std::string index = R"({"metadata": {"total_size": 1}, "weight_map": {)";
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    index += (i == 0 ? "" : ", ") + ("\"" + tensors[i].name) + "\": \"model-0000" + (i < half ? "1" : "2") +
             "-of-00002.safetensors\"";
  }
  dir.Write("model.safetensors.index.json", index + "}}");
  dir.Write("config.json", FormatHfConfig(model, "float32"));
}

void CheckHoldsModel(const std::string& path, const ModelSpec& model) {
  auto directory = HfDirectory::Open(path);
  INFO(directory.status());
  REQUIRE(directory.ok());
  CHECK(ReadHfConfig(path).value() == model);
  const std::vector<ParameterTensor> tensors = AllTensors(model);
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    std::vector<float> values(tensors[i].count());
    const absl::Status status = directory->Read(tensors[i].name, tensors[i].shape, values);
    INFO(status);
    REQUIRE(status.ok());
    CHECK(values == ValuesOf(tensors[i], i));
  }
}

TEST_CASE("a single file and shards hold the same model") {
  for (const bool tied : {false, true}) {
    const ModelSpec model = TestModel(tied);
    const TempDir single;
    WriteShard(single.path() + "/model.safetensors", model, 0, static_cast<int>(AllTensors(model).size()));
    single.Write("config.json", FormatHfConfig(model, "float32"));
    CheckHoldsModel(single.path(), model);
    const TempDir sharded;
    WriteSharded(sharded, model);
    CheckHoldsModel(sharded.path(), model);
  }
}

TEST_CASE("a tensor that the model does not have is refused, and one that follows from its configuration is not") {
  ModelSpec model = TestModel(true);
  const TempDir dir;
  WriteShard(dir.path() + "/model.safetensors", TestModel(false), 0, static_cast<int>(AllTensors(model).size()));
  CHECK(HfDirectory::Open(dir.path())->CheckHoldsOnly(model).ok());  // a tied head that is stored, too
  model.num_hidden_layers = 2;
  const absl::Status status = HfDirectory::Open(dir.path())->CheckHoldsOnly(model);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()).find("/model.safetensors: tensor model.layers.2.") != std::string::npos);

  const auto with = [&](const std::string& name) {
    const TempDir other;
    WriteSafetensors(other.path() + "/model.safetensors", {{.name = name, .shape = {1}}}, {{1}});
    return HfDirectory::Open(other.path())->CheckHoldsOnly(model);
  };
  CHECK(with("model.layers.0.self_attn.rotary_emb.inv_freq").ok());
  CHECK(std::string(with("model.layers.0.self_attn.q_proj.bias").message())
            .find("q_proj.bias is not part of the model") != std::string::npos);
}

TEST_CASE("a directory that lacks something says what") {
  const ModelSpec model = TestModel(false);
  const int count = static_cast<int>(AllTensors(model).size());
  const TempDir dir;
  dir.Write("config.json", FormatHfConfig(model, "float32"));
  CHECK(HfDirectory::Open(dir.path()).status().message() ==
        dir.path() +
            ": holds neither model.safetensors nor model.safetensors.index.json; init_from needs a Hugging "
            "Face directory with weights in safetensors");

  WriteShard(dir.path() + "/model.safetensors", model, 1, count - 1);  // no embedding, no head
  auto directory = HfDirectory::Open(dir.path());
  REQUIRE(directory.ok());
  std::vector<float> values(80);
  CHECK(directory->Read("model.embed_tokens.weight", {10, 8}, values).message() ==
        dir.path() +
            ": tensor model.embed_tokens.weight is missing; the model needs it, copy or download the "
            "directory again");
  CHECK(directory->Read("lm_head.weight", {10, 8}, values).message() ==
        dir.path() +
            ": tensor lm_head.weight is missing; is the model tied (tie_word_embeddings: true in "
            "config.json)?");
  CHECK(directory->Read("model.norm.weight", {9}, std::span(values).first(9)).message() ==
        dir.path() +
            "/model.safetensors: tensor model.norm.weight has shape [8], the model needs [9]; check "
            "spec.model against the directory's config.json");
}

TEST_CASE("an index that promises what is not there is refused") {
  const ModelSpec model = TestModel(true);
  const TempDir dir;
  dir.Write("config.json", FormatHfConfig(model, "float32"));
  WriteShard(dir.path() + "/a.safetensors", model, 0, 1);
  const std::string index = dir.path() + "/model.safetensors.index.json";
  const auto message = [&](std::string_view content) {
    dir.Write("model.safetensors.index.json", content);
    return std::string(HfDirectory::Open(dir.path()).status().message());
  };
  CHECK(message("{}") == index + ": no JSON object with a \"weight_map\"; copy or download the file again");
  CHECK(message(R"({"weight_map": {"x": "a.safetensors"}})") ==
        index +
            ": tensor x is said to be in a.safetensors, which does not hold it; copy or download the directory again");
  CHECK(message(R"({"weight_map": {"x": "b.safetensors"}})") ==
        dir.path() + "/b.safetensors: no such file on this node");
  CHECK(message(R"({"weight_map": {"x": "../a.safetensors"}})") ==
        index + ": tensor x is mapped to \"../a.safetensors\", which is not the name of a file beside the index");
  const std::string deep = R"({"weight_map": {"x": )" + std::string(400'000, '[') + std::string(400'000, ']') + "}}";
  CHECK(message(deep) == index + ": tensor x is mapped to array, which is not the name of a file beside the index");
}

}  // namespace
}  // namespace geopipe
