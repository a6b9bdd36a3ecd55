// 20 fp32 iterations of a whole grid from a Hugging Face directory against losses and gradient norms of an independent
// implementation (tests/golden/engine/make_golden.py: PyTorch).
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "runtime/data/samples/training_data.h"
#include "runtime/manifest/hf_config.h"
#include "runtime/weights/hf_directory.h"
#include "tests/runtime/executor/grid_run.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

class DirectoryWeights final : public WeightSource {
 public:
  explicit DirectoryWeights(const std::string& path) : directory_(*HfDirectory::Open(path)) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override {
    return directory_.Read(name, shape, values);
  }

 private:
  HfDirectory directory_;
};

TrainingSpec TrainingOf(const nlohmann::json& expected) {
  const nlohmann::json& given = expected["training"];
  TrainingSpec training;
  training.iterations = given["iterations"];
  training.tokens_per_iteration = expected["micro_batch_size"].get<int64_t>() *
                                  expected["sequence_length"].get<int64_t>() * expected["micro_batches"].get<int64_t>();
  training.learning_rate = given["learning_rate"];
  training.min_learning_rate = given["min_learning_rate"].get<double>();
  training.warmup_iterations = given["warmup_iterations"];
  training.beta1 = given["beta1"];
  training.beta2 = given["beta2"];
  training.eps = given["eps"];
  training.weight_decay = given["weight_decay"];
  training.grad_clip = given["grad_clip"].get<double>();
  return training;
}

TEST_CASE("two tensor ranks, two replicas and two stages agree with PyTorch over 20 iterations") {
  const std::string name = GENERATE("tied", "untied", "llama31", "llama-bias", "mistral", "qwen2", "qwen3");
  const int32_t zero_stage = GENERATE(0, 3);
  const std::string folder = std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/engine/";
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder + name + "/expected.json"));
  GridOptions options;
  options.model = *ReadHfConfig(folder + name);
  options.training = TrainingOf(expected);
  options.micro_batch_size = 1;
  options.sequence_length = expected["sequence_length"];
  options.grid = {.pipeline = 2, .data = 2, .tensor = 2};
  options.schedule = ScheduleKind::kGeoPipe;
  options.delta_n = 1;
  options.zero_stage = zero_stage;
  options.sequence_parallel = zero_stage == 3;
  options.iterations = options.training.iterations;
  JobSpec job;
  job.model = options.model;
  job.training = options.training;
  job.data.format = DataFormat::kTokens;
  job.data.dtype = TokenDtype::kUint16;
  job.data.paths = {folder + "tokens.u16"};
  job.data.shuffle = false;
  options.tokens = [&](const Rank& /*rank*/) { return *TrainingData::Open(job, options.sequence_length); };
  DirectoryWeights weights(folder + name);
  options.state = &weights;
  const GridResult result = TrainGrid(options);
  INFO(name << ", " << options.name() << ": " << result.status);
  REQUIRE(result.status.ok());
  for (int64_t i = 0; i < options.iterations; ++i) {
    INFO("iteration " << i);
    CHECK(result.losses[i] == Approx(expected["losses"][i].get<double>()).epsilon(1e-6));
    CHECK(result.norms[i] == Approx(expected["gradient_norms"][i].get<double>()).epsilon(1e-4));
  }
}

// The learning rate stays constant, and there are enough iterations to learn in.
TEST_CASE("in bf16 a grid learns like in fp32, within 1 % over 100 iterations, and with the same bits in every run") {
  const std::string folder = std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/engine/";
  GridOptions options;
  options.model = *ReadHfConfig(folder + "untied");
  options.training = {.iterations = 100,
                      .tokens_per_iteration = 192,
                      .learning_rate = 3e-3,
                      .warmup_iterations = 5,
                      .min_learning_rate = std::nullopt,
                      .grad_clip = 1.0};
  options.micro_batch_size = 1;
  options.sequence_length = 32;
  options.grid = {.pipeline = 2, .data = 2, .tensor = 2};
  options.schedule = ScheduleKind::kGeoPipe;
  options.delta_n = 1;
  options.zero_stage = 1;
  options.iterations = kSanitized ? 20 : 100;
  JobSpec job;
  job.model = options.model;
  job.training = options.training;
  job.data.format = DataFormat::kTokens;
  job.data.dtype = TokenDtype::kUint16;
  job.data.paths = {folder + "tokens.u16"};
  options.tokens = [&](const Rank& /*rank*/) { return *TrainingData::Open(job, options.sequence_length); };
  DirectoryWeights weights(folder + "untied");
  options.state = &weights;
  const GridResult fp32 = TrainGrid(options);
  REQUIRE(fp32.status.ok());
  options.precision = Precision::kBf16;
  const GridResult bf16 = TrainGrid(options);
  REQUIRE(bf16.status.ok());
  // Means of ten: a single iteration's loss may differ more, since the two runs see a batch with other weights.
  for (size_t i = 0; i < fp32.losses.size(); i += 10) {
    INFO("iterations from " << i);
    const auto mean = [&](const std::vector<double>& losses) {
      return std::accumulate(losses.begin() + i, losses.begin() + i + 10, 0.0) / 10;
    };
    CHECK(mean(bf16.losses) == Approx(mean(fp32.losses)).epsilon(0.01));
  }
  CHECK(bf16.losses != fp32.losses);
  CHECK((kSanitized || fp32.losses.back() < 0.9 * fp32.losses.front()));
  const GridResult again = TrainGrid(options);
  CHECK(again.losses == bf16.losses);
  CHECK(again.norms == bf16.norms);
}

}  // namespace
}  // namespace geopipe
