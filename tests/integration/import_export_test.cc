// Weights of a Hugging Face directory go into a job of any grid and come out of its checkpoint as they were, with real
// programs: steps are so small that training moves the fp32 masters, and the bf16 numbers nearest to them stay.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/manifest/hf_config.h"
#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"
#include "tests/runtime/weights/written_hf_directory.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// A model whose keys differ from the defaults, so that they have to pass through config.json.
ModelSpec GroupedModel(bool tied) {
  return {.hidden_size = 32,
          .intermediate_size = 64,
          .num_hidden_layers = 5,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .vocab_size = 160,
          .max_position_embeddings = 64,
          .rope_theta = 500'000,
          .rms_norm_eps = 1e-6,
          .tie_word_embeddings = tied};
}

// Values between 0.01 and 0.06, of either sign; norms around 1.
std::vector<float> RandomValues(std::mt19937_64& random, const ParameterTensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) {
    count *= size;
  }
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(random() >> 40) * 0x1p-24F;
    const float magnitude = tensor.shape.size() == 1 ? 0.9F + 0.2F * unit : 0.01F + 0.05F * unit;
    values.push_back(tensor.shape.size() > 1 && random() % 2 == 0 ? -magnitude : magnitude);
  }
  return values;
}

struct Grid {
  std::string name;
  std::string keys;  // of the job's spec
  std::vector<GridSite> sites;
  size_t stages = 1;
  bool tied = false;
  std::string architecture = "LlamaForCausalLM";
  std::function<void(ModelSpec&)> family = [](ModelSpec&) {};
};

std::string Exported(const std::filesystem::path& folder, const std::string& dtype) {
  const std::string output = (folder / ("exported-" + dtype)).string();
  const CommandResult result =
      RunCommand("geopipectl", {"export-hf", "--checkpoint", (folder / "checkpoints/iteration-0000000003").string(),
                                "--output", output, "--dtype", dtype, "--max-shard-size", "40kB"});
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  return output;
}

void CheckComesOut(const Grid& grid) {
  INFO(grid.name);
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const TempFolder folder = TestFolder();
  ModelSpec model = GroupedModel(grid.tied);
  grid.family(model);
  const std::string imported = (folder.path() / "imported").string();
  std::filesystem::create_directory(imported);
  WriteShardedBf16(imported, model, [&](const ParameterTensor& tensor) { return RandomValues(random, tensor); });
  const std::string tokenizer = R"({"a": "tokenizer"})";
  REQUIRE(WriteFileAtomically(imported + "/tokenizer.json", tokenizer).ok());
  const Json report =
      TrainOnSites(folder,
                   fmt::format("  model: {{init_from: imported}}\n"
                               "  data: {{format: tokens, path: {}, dtype: uint16}}\n"
                               "  training: {{iterations: 3, tokens_per_iteration: 256, learning_rate: 1.0e-7,\n"
                               "    weight_decay: 0}}\n"
                               "  search: {{micro_batch_size: [1], sequence_length: [32]}}\n"
                               "  checkpoint: {{path: checkpoints}}\n{}",
                               SourcePath("tests/golden/engine/tokens.u16"), grid.keys),
                   grid.sites);
  CHECK(report["plan"]["stages"].size() == grid.stages);

  const std::string exported = Exported(folder.path(), "bf16");
  const std::map<std::string, TensorContent> expected = TensorsIn(imported);
  const std::map<std::string, TensorContent> found = TensorsIn(exported);
  CHECK(found.size() == expected.size());
  CHECK(Differing(found, expected) == std::vector<std::string>());
  const absl::StatusOr<ModelSpec> read = ReadHfConfig(exported);
  INFO(read.status());
  REQUIRE(read.ok());
  CHECK(*read == model);
  CHECK(*ReadFile(exported + "/tokenizer.json", 1 << 20) == tokenizer);  // the checkpoint says where it is
  const Json config = Json::parse(std::ifstream(exported + "/config.json"));
  CHECK(config["torch_dtype"] == "bfloat16");
  CHECK(config["architectures"] == Json{grid.architecture});
  const Json index = Json::parse(std::ifstream(exported + "/model.safetensors.index.json"));
  CHECK(index["weight_map"].size() == expected.size());
  CHECK(index["metadata"] == Json::parse(std::ifstream(imported + "/model.safetensors.index.json"))["metadata"]);

  // It has trained: every tensor has moved.
  int32_t moved = 0;
  for (const auto& [name, tensor] : TensorsIn(Exported(folder.path(), "fp32"))) {
    std::string rounded = expected.at(name).bytes;  // as fp32 whose lower halves are zero
    std::string whole(2 * rounded.size(), '\0');
    for (size_t i = 0; i < rounded.size(); ++i) {
      whole[(4 * (i / 2)) + 2 + (i % 2)] = rounded[i];
    }
    CHECK(tensor.bytes.size() == whole.size());
    moved += tensor.bytes != whole ? 1 : 0;
  }
  CHECK(moved == std::ssize(expected));
}

TEST_CASE("a bf16 directory of Qwen2 comes out of tensor 2 x pipeline 2 as it went in") {
  CheckComesOut({.name = "tp 2 pp 2",
                 .keys = "  precision: bf16\n  parallelism: {tensor: 2, pipeline: 2, stages_per_rank: 1}\n",
                 .sites = {{.name = "a", .devices_per_node = 2}, {.name = "b", .devices_per_node = 2}},
                 .stages = 2,
                 .architecture = "Qwen2ForCausalLM",
                 .family = [](ModelSpec& model) { model.family = ModelFamily::kQwen2; }});
}

TEST_CASE("a tied bf16 directory of Qwen3 comes out of tensor 2 x pipeline 2 x data 2 with ZeRO 3 as it went in") {
  CheckComesOut({.name = "tp 2 sp pp 2 dp 2 zero 3",
                 .keys =
                     "  precision: bf16\n  parallelism: {tensor: 2, sequence_parallel: true, pipeline: 2, data: 2,\n"
                     "    zero_stage: 3, stages_per_rank: 1}\n",
                 .sites = {{.name = "a", .nodes = 2, .devices_per_node = 2}, {.name = "b"}},
                 .stages = 2,
                 .tied = true,
                 .architecture = "Qwen3ForCausalLM",
                 .family = [](ModelSpec& model) {
                   model.family = ModelFamily::kQwen3;
                   model.given_head_dim = 12;
                 }});
}

TEST_CASE(
    "a bf16 directory of Llama 3.1 with biases comes out of four tensor ranks that share key-value heads, trained in "
    "fp32, as it went in") {
  CheckComesOut({.name = "tp 4 fp32",
                 .keys = "  precision: fp32\n  parallelism: {tensor: 4, pipeline: 1}\n",
                 .sites = {{.name = "a"}},
                 .family = [](ModelSpec& model) {
                   model.attention_bias = true;
                   model.rope_scaling = ModelPreset("llama-3.1-8b")->rope_scaling;
                 }});
}

}  // namespace
}  // namespace geopipe
