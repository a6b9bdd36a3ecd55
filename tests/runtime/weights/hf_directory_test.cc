#include "runtime/weights/hf_directory.h"

#include <fmt/format.h>

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
  int64_t bytes = 0;
  for (const ParameterTensor& tensor : tensors) {
    bytes += 4 * tensor.count();
  }
  std::string index = fmt::format(R"({{"metadata": {{"total_size": {}}}, "weight_map": {{)", bytes);
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

TEST_CASE("a model of which tensors are missing or of another shape is refused before any weight is read") {
  const ModelSpec model = TestModel(false);
  const TempDir dir;
  WriteShard(dir.path() + "/model.safetensors", model, 0, static_cast<int>(AllTensors(model).size()));
  const absl::StatusOr<HfDirectory> directory = HfDirectory::Open(dir.path());
  REQUIRE(directory.ok());
  CHECK(directory->CheckHoldsAll(model).ok());
  ModelSpec other = model;
  ++other.num_hidden_layers;
  CHECK(directory->CheckHoldsAll(other).code() == absl::StatusCode::kNotFound);
  other = model;
  other.vocab_size += 3;
  CHECK(std::string(directory->CheckHoldsAll(other).message()).find("has shape [10, 8], the model needs [13, 8]") !=
        std::string::npos);
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
        index +
            ": tensor x is said to be in b.safetensors, a file that is not there; copy or download the directory "
            "again");
  for (const std::string escape : {"../a.safetensors", "/etc/passwd", "..", ".", "", "sub/a.safetensors"}) {
    CHECK(message(R"({"weight_map": {"x": ")" + escape + R"("}})") ==
          index + ": tensor x is mapped to '" + escape + "', which is not the name of a file beside the index");
  }
  CHECK(message(R"({"weight_map": {"x": ["a.safetensors"]}})") ==
        index + ": tensor x is mapped to a list, which is not the name of a file beside the index");
  const std::string name = AllTensors(model).front().name;
  const std::string whole = R"("weight_map": {")" + name + R"(": "a.safetensors"})";
  CHECK(message("{" + whole + "}").empty());
  CHECK(message("{\"metadata\": {\"total_size\": 320.0}, " + whole + "}").empty());
  CHECK(message("{\"metadata\": {\"total_size\": 321}, " + whole + "}") ==
        index + ": metadata.total_size is 321, but the tensors have 320 bytes; copy or download the directory again");
  CHECK(message("{\"metadata\": {\"total_size\": \"320\"}, " + whole + "}") ==
        index + ":1:29: metadata.total_size: is '320'; it must be a number of bytes");
  CHECK(message("{\"weight_map\": {}}").empty());
  WriteShard(dir.path() + "/a.safetensors", model, 0, 2);
  CHECK(message("{" + whole + "}") == index + ": a.safetensors holds tensor " + AllTensors(model)[1].name +
                                          ", which the index does not name; copy or download the directory again");
  CHECK(message("{\"weight_map\": {") ==
        index + ":1:17: not valid JSON: the end of the file stands where a key in double quotes is needed");
  CHECK(message(R"({"weight_map": {"x": "a", "x": "b"}})") ==
        index + ":1:27: x: given twice, first on line 1; keep one of the two");
  const std::string deep = R"({"weight_map": {"x": )" + std::string(400'000, '[') + std::string(400'000, ']') + "}}";
  CHECK(message(deep).ends_with("nested deeper than 64 levels"));
}

TEST_CASE("a tied model may store its head only as its embedding") {
  const ModelSpec model = TestModel(true);
  const TempDir dir;
  const auto tied = [&](const std::vector<float>& head, FloatFormat format) {
    std::vector<float> embedding(80);
    for (size_t i = 0; i < embedding.size(); ++i) {
      embedding[i] = static_cast<float>(i);
    }
    WriteSafetensors(dir.path() + "/model.safetensors",
                     {{"lm_head.weight", {10, 8}, format}, {"model.embed_tokens.weight", {10, 8}, FloatFormat::kFp32}},
                     {head.empty() ? embedding : head, embedding});
    return HfDirectory::Open(dir.path())->CheckTiedHead(model);
  };
  CHECK(tied({}, FloatFormat::kFp32).ok());
  CHECK(tied({}, FloatFormat::kBf16).ok());
  const absl::Status refused = tied(std::vector<float>(80, 1.0F), FloatFormat::kFp32);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(
      refused.message() ==
      dir.path() +
          "/model.safetensors: lm_head.weight differs from model.embed_tokens.weight, but config.json says "
          "tie_word_embeddings: true, by which the model has no head of its own; say tie_word_embeddings: false there, "
          "or remove the tensor");
  CHECK(HfDirectory::Open(dir.path())->CheckTiedHead(TestModel(false)).ok());
}

TEST_CASE("a padded vocabulary is told with its rows, and read into as many or more") {
  const TempDir dir;
  WriteSafetensors(dir.path() + "/model.safetensors", {{.name = "model.embed_tokens.weight", .shape = {16, 8}}},
                   {std::vector<float>(128)});
  const auto directory = HfDirectory::Open(dir.path());
  REQUIRE(directory.ok());
  std::vector<float> values(80);
  CHECK(directory->Read("model.embed_tokens.weight", {10, 8}, values).message() ==
        dir.path() +
            "/model.safetensors: tensor model.embed_tokens.weight has 16 rows, 6 more than the model's 10: its "
            "vocabulary was padded, and the rows would be lost; say padded_vocab_size: 16 in the job's model, which "
            "keeps "
            "them and predicts none");
  std::vector<float> more(160, 1.0F);
  CHECK(directory->Read("model.embed_tokens.weight", {20, 8}, more).ok());
  CHECK(std::ranges::count(more, 0.0F) == 160);  // what is there is zero, too
}

TEST_CASE("weights of another kind in the place of safetensors are named") {
  const auto [file, words] = GENERATE(table<std::string, std::string>({
      {"pytorch_model.bin", "it holds PyTorch weights (pytorch_model*.bin); save them as safetensors"},
      {"pytorch_model.bin.index.json", "it holds PyTorch weights"},
      {"adapter_model.safetensors", "it holds a LoRA adapter (adapter_model.*); merge it into its base model first"},
      {"consolidated.00.pth", "it holds weights as Meta publishes them"},
      {"llama.Q4_0.gguf", "it holds GGUF weights (llama.cpp) (*.gguf)"},
      {"tf_model.h5", "it holds TensorFlow weights"},
      {"mp_rank_00/model_optim_rng.pt", "it holds a Megatron-LM checkpoint"},
      {"weights.npz", "it holds NumPy archives (*.npz)"},
  }));
  const TempDir dir;
  dir.Write(file, "x");
  CHECK(std::string(HfDirectory::Open(dir.path()).status().message()).find(words) != std::string::npos);
}

}  // namespace
}  // namespace geopipe
