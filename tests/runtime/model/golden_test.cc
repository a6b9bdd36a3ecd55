// 20 fp32 iterations from a Hugging Face directory against losses and gradient norms of an independent implementation
// (tests/golden/engine/make_golden.py: PyTorch).
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/data/samples/training_data.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/weights/hf_directory.h"
#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

class DirectoryWeights final : public WeightSource {
 public:
  explicit DirectoryWeights(const HfDirectory& directory) : directory_(directory) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return directory_.Read(name, shape, values);
  }

 private:
  const HfDirectory& directory_;
};

TransformerStageOptions OptionsOf(const nlohmann::json& expected, const ModelSpec& model) {
  TransformerStageOptions options;
  options.model = model;
  options.micro_batch_size = expected["micro_batch_size"];
  options.sequence_length = expected["sequence_length"];
  options.micro_batches = expected["micro_batches"];
  const nlohmann::json& training = expected["training"];
  options.training.iterations = training["iterations"];
  options.training.tokens_per_iteration = options.micro_batch_size * options.sequence_length * options.micro_batches;
  options.training.learning_rate = training["learning_rate"];
  options.training.min_learning_rate = training["min_learning_rate"].get<double>();
  options.training.warmup_iterations = training["warmup_iterations"];
  options.training.beta1 = training["beta1"];
  options.training.beta2 = training["beta2"];
  options.training.eps = training["eps"];
  options.training.weight_decay = training["weight_decay"];
  options.training.grad_clip = training["grad_clip"].get<double>();
  return options;
}

TEST_CASE("20 iterations from a Hugging Face directory agree with PyTorch") {
  const std::string name = GENERATE("tied", "untied", "llama31", "llama-bias", "mistral", "qwen2", "qwen3");
  const std::string folder = std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/engine/";
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder + name + "/expected.json"));
  const auto directory = HfDirectory::Open(folder + name);
  REQUIRE(directory.ok());
  const auto model = ReadHfConfig(folder + name);
  REQUIRE(model.ok());
  const TransformerStageOptions options = OptionsOf(expected, *model);

  JobSpec job;
  job.model = options.model;
  job.training = options.training;
  job.data.format = DataFormat::kTokens;
  job.data.dtype = TokenDtype::kUint16;
  job.data.paths = {folder + "tokens.u16"};
  job.data.shuffle = false;
  auto data = TrainingData::Open(job, options.sequence_length);
  REQUIRE(data.ok());

  DirectoryWeights weights(*directory);
  PipelineDriver pipeline(options, Split(options.model, options.model.num_hidden_layers), **data, weights);
  for (int64_t i = 0; i < options.training.iterations; ++i) {
    const IterationResult result = pipeline.Iterate(i, DriveOrder::k1F1B);
    INFO(name << ", iteration " << i);
    CHECK(result.loss == Approx(expected["losses"][i].get<double>()).epsilon(1e-6));
    CHECK(result.grad_norm == Approx(expected["gradient_norms"][i].get<double>()).epsilon(1e-4));
  }
}

}  // namespace
}  // namespace geopipe
