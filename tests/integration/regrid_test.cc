// States that go from one grid of ranks to another through files: checkpoints, and weights of Hugging Face.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/weights/safetensors.h"
#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string CheckpointLines(const TempFolder& folder) {
  return fmt::format("  checkpoint: {{path: {}, every: 100, keep: 9}}\n", (folder.path() / "ckpt").string());
}

TEST_CASE("3 sites, 1 site, 2 sites of tensor 2 x data 2 x ZeRO 3, 2 sites of tensor 4: the losses of one run") {
  const TempFolder folder = TestFolder();
  const std::string single = WriteGridSites(folder, "single", {{"east", 1, 1}});
  const std::string pair = WriteGridSites(folder, "pair", {{"east"}, {"west"}});
  const std::string three = WriteGridSites(folder, "three", {{"east", 1, 1}, {"west", 1, 1}, {"north", 1, 1}});
  const std::vector<double> whole = GridLosses(TrainGridJob(
      folder, WriteGridJob(folder, {.name = "whole", .parallelism = "pipeline: 1", .sites = "east"}), single, 8));

  struct Part {
    GridJob job;
    std::string sites;
    int64_t ranks = 0;
  };
  const std::vector<Part> parts{
      {{.name = "three-sites", .parallelism = "pipeline: 3", .sites = "east, west, north"}, three, 3},
      {{.name = "one-site", .parallelism = "pipeline: 1", .sites = "east"}, single, 1},
      {{.name = "zero-three", .parallelism = "tensor: 2, data: 2, pipeline: 2, zero_stage: 3"}, pair, 8},
      {{.name = "tensor-four", .parallelism = "tensor: 4, pipeline: 2"}, pair, 8}};
  std::vector<double> losses;
  int64_t done = 0;
  for (Part part : parts) {
    INFO(part.job.name);
    part.job.more = CheckpointLines(folder);
    done += 2;
    const Json report = TrainGridJob(folder, WriteGridJob(folder, part.job), part.sites, done,
                                     done > 2 ? std::vector<std::string>{"--resume"} : std::vector<std::string>{});
    int64_t ranks = 0;
    for (const Json& stage : report["plan"]["stages"]) {
      ranks += std::ssize(stage["devices"]);
    }
    CHECK(ranks == part.ranks);
    CHECK(report["iterations"].front()["iteration"] == done - 2);
    const std::vector<double> of_part = GridLosses(report);
    losses.insert(losses.end(), of_part.begin(), of_part.end());
  }
  REQUIRE(losses.size() == whole.size());
  double farthest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    INFO("iteration " << i);
    CHECK(losses[i] == Approx(whole[i]).epsilon(2e-5));
    farthest = std::max(farthest, std::abs(losses[i] / whole[i] - 1));
  }
  std::printf("losses over four grids are within %.1e of one run's\n", farthest);
}

TEST_CASE("a loss that is none on tensor and data ranks: iteration, stage and the last checkpoint are named") {
  const TempFolder folder = TestFolder();
  const std::string pair = WriteGridSites(folder, "pair", {{"east"}, {"west"}});
  const std::string job = WriteGridJob(
      folder, {.name = "diverging", .parallelism = "tensor: 2, data: 2, pipeline: 2", .more = CheckpointLines(folder)});
  TrainGridJob(folder, job, pair, 2);
  std::string text = ReadFile(job, 1 << 20).value();
  const std::string rate = "learning_rate: 5.0e-3";
  text.replace(text.find(rate), rate.size(), "learning_rate: 1.0e15");
  REQUIRE(WriteFileAtomically(job, text).ok());
  const CommandResult result = RunCommand("geopipectl", {"playground", "--job", job, "--topology", pair, "--iterations",
                                                         "8", "--resume", "--output", folder.path().string()});
  std::printf("%s", result.err.c_str());
  CheckEnded(result, 1, "error: job diverging FAILED: worker ",
             {": iteration 3, ", " on rank ", "; lower training.learning_rate", "; last checkpoint: iteration 2"});
}

// --- A directory of Hugging Face -------------------------------------------------------------------------------------

const char* const kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
"num_key_value_heads": 2, "vocab_size": 260, "max_position_embeddings": 32, "rope_theta": 10000.0,
"rms_norm_eps": 1e-05, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

std::vector<NamedShape> LlamaTensors() {
  std::vector<NamedShape> tensors{{"model.embed_tokens.weight", {260, 32}}};
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const NamedShape& of_layer : std::vector<NamedShape>{{"input_layernorm.weight", {32}},
                                                              {"self_attn.q_proj.weight", {32, 32}},
                                                              {"self_attn.k_proj.weight", {16, 32}},
                                                              {"self_attn.v_proj.weight", {16, 32}},
                                                              {"self_attn.o_proj.weight", {32, 32}},
                                                              {"post_attention_layernorm.weight", {32}},
                                                              {"mlp.gate_proj.weight", {64, 32}},
                                                              {"mlp.up_proj.weight", {64, 32}},
                                                              {"mlp.down_proj.weight", {32, 64}}}) {
      tensors.push_back({prefix + of_layer.name, of_layer.shape});
    }
  }
  tensors.push_back({"model.norm.weight", {32}});
  tensors.push_back({"lm_head.weight", {260, 32}});
  return tensors;
}

// Of any magnitude that a weight has, either sign, never 0: the smallest step of an update does not change it.
std::string RandomBf16(std::mt19937_64& random, int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint16_t>(0x3800 + random() % 0x500 + (random() % 2 << 15));
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return bytes;
}

// Three shards and an index; the bytes of each tensor.
std::map<std::string, std::string> WriteShards(const fs::path& folder, std::mt19937_64& random) {
  std::map<std::string, std::string> all;
  Json weight_map;
  const std::vector<NamedShape> tensors = LlamaTensors();
  constexpr size_t kShards = 3;
  for (size_t shard = 0; shard < kShards; ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, kShards);
    Json header;
    std::string data;
    for (size_t i = shard; i < tensors.size(); i += kShards) {
      int64_t count = 1;
      for (const int64_t extent : tensors[i].shape) {
        count *= extent;
      }
      const std::string bytes = RandomBf16(random, count);
      header[tensors[i].name] = {
          {"dtype", "BF16"}, {"shape", tensors[i].shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data += bytes;
      all[tensors[i].name] = bytes;
      weight_map[tensors[i].name] = name;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::string file(sizeof size, '\0');
    std::memcpy(file.data(), &size, sizeof size);
    REQUIRE(WriteFileAtomically(folder / name, file + text + data).ok());
  }
  REQUIRE(WriteFileAtomically(folder / "model.safetensors.index.json", Json({{"weight_map", weight_map}}).dump()).ok());
  REQUIRE(WriteFileAtomically(folder / "config.json", kConfig).ok());
  return all;
}

TEST_CASE("bf16 shards with grouped queries, through a checkpoint of tensor 2 x pipeline 2, come out byte by byte") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const TempFolder folder = TestFolder();
  const fs::path imported = folder.path() / "imported";
  REQUIRE(MakeFolder(imported).ok());
  const std::map<std::string, std::string> given = WriteShards(imported, random);
  const std::string job = (folder.path() / "import.yaml").string();
  // One iteration whose update is far below what fp32 can tell of any weight.
  REQUIRE(WriteFileAtomically(
              job, fmt::format("apiVersion: geopipe/v1\n"
                               "kind: TrainingJob\n"
                               "metadata: {{name: import}}\n"
                               "spec:\n"
                               "  model: {{init_from: {}}}\n"
                               "  data: {{format: text, path: [{}/LICENSE], tokenizer: byte}}\n"
                               "  training: {{iterations: 1, tokens_per_iteration: 128, learning_rate: 1.0e-30,\n"
                               "    grad_clip: 1.0}}\n"
                               "  precision: bf16\n"
                               "  parallelism: {{tensor: 2, pipeline: 2}}\n"
                               "  search: {{micro_batch_size: [1], sequence_length: [32]}}\n"
                               "  placement: {{sites: [east, west]}}\n{}",
                               imported.string(), GEOPIPE_SOURCE_DIR, CheckpointLines(folder)))
              .ok());
  const Json report = TrainGridJob(folder, job, WriteGridSites(folder, "pair", {{"east", 1, 2}, {"west", 1, 2}}), 1);
  CHECK(report["plan"]["tensor"] == 2);
  CHECK(report["plan"]["stages"].size() == 2);

  const fs::path exported = folder.path() / "exported";
  const CommandResult result =
      RunCommand("geopipectl", {"export-hf", "--checkpoint", (folder.path() / "ckpt/iteration-0000000001").string(),
                                "--output", exported.string(), "--dtype", "bf16", "--max-shard-size", "20KiB"});
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  std::map<std::string, std::string> found;
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(exported)) {
    if (entry.path().extension() != ".safetensors") {
      continue;
    }
    ++files;
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(entry.path().string());
    REQUIRE(file.ok());
    for (const auto& [name, tensor] : file->tensors()) {
      CHECK(tensor.dtype == "BF16");
      found[name].assign(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    }
  }
  CHECK(files > 1);
  REQUIRE(found.size() == given.size());
  for (const auto& [name, bytes] : given) {
    INFO(name);
    CHECK((found[name] == bytes));
  }
  std::printf("%zu tensors in 3 files are the same bytes in %d\n", found.size(), files);
}

}  // namespace
}  // namespace geopipe
