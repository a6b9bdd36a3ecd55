// Jobs on GPUs through the installed programs, where an emulated GPU stands behind the port
// (tests/support/gpu_emulator).
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr size_t kIterations = 4;

// A model whose iteration takes an emulated GPU some 0.1 s. `parallelism`: of the job.
std::string JobText(const std::string& parallelism) {
  return fmt::format(R"(apiVersion: geopipe/v1
kind: TrainingJob
metadata: {{name: tiny-gpu}}
spec:
  model:
    {{hidden_size: 32, intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,
     vocab_size: 258, max_position_embeddings: 64}}
  data: {{format: text, path: ["{}"], tokenizer: byte}}
  training: {{iterations: {}, tokens_per_iteration: 256, seed: 1, learning_rate: 5.0e-3, grad_clip: 1.0}}
  precision: fp32
  search: {{micro_batch_size: [2], sequence_length: [32]}}
  parallelism: {{{}}}
  recovery: memory
)",
                     SourcePath("LICENSE"), kIterations, parallelism);
}

// Trains at so many sites and returns the losses and norms of all iterations.
std::vector<double> Train(const std::string& parallelism, int sites, const std::string& schedule,
                          const std::string& backend) {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const std::string job = (folder.path() / "job.yaml").string();
  REQUIRE(WriteFileAtomically(job, JobText(parallelism)).ok());
  std::vector<std::string> args{"playground",
                                "--job",
                                job,
                                "--output",
                                folder.path().string(),
                                "-o",
                                "json",
                                "--sites",
                                std::to_string(sites),
                                "--link",
                                "latency=1ms,bandwidth=1Gbps",
                                "--schedule",
                                schedule,
                                "--backend",
                                backend};
  if (backend == "cuda") {
    args.insert(args.end(), {"--gpu-library", GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so"});
  }
  const CommandResult result = RunCommand("geopipectl", args);
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  const Json report = Json::parse(result.out);
  REQUIRE(report["iterations"].size() == kIterations);
  std::vector<double> numbers;
  for (const Json& iteration : report["iterations"]) {
    numbers.push_back(iteration["loss"].get<double>());
    numbers.push_back(iteration["grad_norm"].get<double>());
  }
  return numbers;
}

bool AreClose(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-5 * std::abs(a[i])) {
      return false;
    }
  }
  return a.size() == b.size();
}

TEST_CASE("jobs on GPUs have the processors' losses, and the same bits for every schedule") {
  const std::vector<double> processor = Train("pipeline: 1", 1, "gpipe", "cpu");
  const std::vector<double> whole = Train("pipeline: 1", 1, "gpipe", "cuda");
  CHECK(AreClose(whole, processor));
  CHECK(Train("pipeline: 2", 2, "zb-h1", "cuda") == whole);
  CHECK(AreClose(Train("pipeline: 1, tensor: 2, data: 2, zero_stage: 1", 1, "gpipe", "cuda"), processor));
}

}  // namespace
}  // namespace geopipe
