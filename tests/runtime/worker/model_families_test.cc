// Hugging Face directories of the models that people train: what config.json says of them, in every spelling, becomes
// what the worker computes.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/manifest/job_manifest.h"
#include "tests/runtime/weights/written_hf_directory.h"
#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// Every config.json here begins with these keys: 6 heads of 8 make the width of 48.
constexpr std::string_view kCommon =
    R"("hidden_act": "silu", "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
       "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 64,
       "rms_norm_eps": 1e-5, "tie_word_embeddings": false, )";
constexpr std::string_view kLlama = R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", )";

ModelSpec Plain() {
  return {.hidden_size = 48,
          .intermediate_size = 112,
          .num_hidden_layers = 3,
          .num_attention_heads = 6,
          .num_key_value_heads = 2,
          .vocab_size = 160,
          .max_position_embeddings = 64};
}

struct Directory {
  std::string config;         // without the common keys and the braces
  ModelSpec model = Plain();  // whose tensors lie beside it
};

float Value(const ParameterTensor& tensor, size_t i) {
  const bool is_norm = tensor.shape.size() == 1 && tensor.name.ends_with("norm.weight");
  return (is_norm ? 1.0F : 0.0F) + 0.05F * (static_cast<float>((i * 7919 + tensor.name.size() * 31) % 41) / 20 - 1);
}

// Trains three iterations from the directory, by a job that says nothing of the model, and returns the losses.
std::vector<double> Losses(const Directory& directory) {
  const TempDir dir;
  const std::string folder = dir.path() + "/model";
  std::filesystem::create_directory(folder);
  WriteShardedBf16(folder, directory.model, [](const ParameterTensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.count()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = Value(tensor, i);
    }
    return values;
  });
  REQUIRE(WriteFileAtomically(folder + "/config.json", fmt::format("{{{}{}}}", kCommon, directory.config)).ok());
  std::string tokens;
  for (int i = 0; i < 2000; ++i) {
    tokens += static_cast<char>((i * 7) % 151);
    tokens += '\0';
  }
  dir.Write("tokens.bin", tokens);
  const absl::StatusOr<JobSpec> job = ParseJobFile(
      "apiVersion: geopipe/v1\nkind: TrainingJob\nmetadata: {name: family}\nspec:\n  model: {init_from: model}\n"
      "  data: {format: tokens, path: tokens.bin}\n"
      "  training: {iterations: 3, tokens_per_iteration: 256, learning_rate: 1.0e-3}\n"
      "  parallelism: {tensor: 1, pipeline: 1, data: 1, stages_per_rank: 1}\n"
      "  search: {micro_batch_size: [2], sequence_length: [16]}\n",
      "job.yaml", dir.path(), BackendKind::kCpu);
  INFO(job.status());
  REQUIRE(job.ok());
  FakeCluster cluster(1);
  cluster.Command(0, PrepareCommandFor(*job, {}, 1, 0));
  const v1::WorkerReport prepared =
      cluster.Await(0, [](const v1::WorkerReport& report) { return report.has_prepared() || report.has_failure(); });
  INFO(prepared.ShortDebugString());
  REQUIRE(prepared.has_prepared());
  cluster.Command(0, CommitCommandFor(1, 3));
  cluster.Await(0, [](const v1::WorkerReport& report) { return report.has_finished() || report.has_failure(); });
  std::vector<double> losses;
  for (const v1::WorkerReport& report : cluster.reports(0)) {
    if (report.has_iteration()) {
      losses.push_back(report.iteration().loss());
    }
  }
  return losses;
}

void CheckTrains(const Directory& directory, const std::vector<double>& plain) {
  const std::vector<double> losses = Losses(directory);
  CAPTURE(directory.config, losses, plain);
  REQUIRE(losses.size() == 3);
  CHECK(losses.back() < losses.front());
  CHECK(losses.front() != plain.front());  // what it says changes what is computed
}

TEST_CASE("a directory of each family trains by its config.json alone") {
  const std::vector<double> plain = Losses({.config = std::string(kLlama) + R"("rope_theta": 10000.0)"});
  REQUIRE(plain.size() == 3);
  CHECK(plain.back() < plain.front());
  ModelSpec wide = Plain();  // Mistral-Nemo: heads of another width than hidden_size / num_attention_heads
  wide.given_head_dim = 16;
  CheckTrains({.config = R"("architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 16,
                            "sliding_window": null, "rope_theta": 10000.0)",
               .model = wide},
              plain);
  ModelSpec with_biases = Plain();
  with_biases.family = ModelFamily::kQwen2;
  CheckTrains({.config = R"("architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": false,
                            "sliding_window": 32, "max_window_layers": 2, "rope_theta": 10000.0)",
               .model = with_biases},
              plain);
  ModelSpec with_norms = Plain();
  with_norms.family = ModelFamily::kQwen3;
  CheckTrains({.config = R"("architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8,
                            "rope_theta": 10000.0)",
               .model = with_norms},
              plain);
}

TEST_CASE("rope type llama3 is the same model as transformers 4 and 5 spell it") {
  const std::string scaling = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 16)";
  const std::vector<double> plain = Losses({.config = std::string(kLlama) + R"("rope_theta": 10000.0)"});
  const Directory version_4 = {.config = fmt::format(R"({}"rope_theta": 10000.0,
                                                        "rope_scaling": {{"rope_type": "llama3", {}}})",
                                                     kLlama, scaling)};
  const Directory version_5 = {
      .config =
          fmt::format(R"({}"rope_parameters": {{"rope_theta": 10000.0, "rope_type": "llama3", {}}})", kLlama, scaling)};
  CheckTrains(version_4, plain);
  CHECK(Losses(version_4) == Losses(version_5));
}

TEST_CASE("a directory whose embedding and head have more rows than tokens trains as one without them") {
  const std::string config = std::string(kLlama) + R"("rope_theta": 10000.0)";
  ModelSpec padded = Plain();
  padded.padded_vocab_size = 256;
  // The first rows have the same values, as a tensor's values follow from name and place.
  CHECK(Losses({.config = config, .model = padded}) == Losses({.config = config}));
}

}  // namespace
}  // namespace geopipe
