// Checks that a stage holds exactly what the planner's memory model says, and that all of it comes back.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "optimizer/model/memory_model.h"
#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

int64_t Activations(PipelineDriver& pipeline, size_t stage) {
  return pipeline.allocator(stage).usage(MemoryCategory::kActivations).bytes;
}

Tensor Message(Allocator& allocator, const TransformerStageOptions& options) {
  return *Tensor::Zeros(allocator, MemoryCategory::kTransport, DType::kFp32,
                        {options.micro_batch_size * options.sequence_length, options.model.hidden_size});
}

TEST_CASE("activations per micro-batch are exactly the memory model's, from F to I and from I to W") {
  const bool tied = GENERATE(false, true);
  TransformerStageOptions options = SmallOptions(tied);
  SetFamily(GENERATE(range(0, kFamilyVariants)), options.model);
  const int64_t stages = GENERATE(1, 3);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(1);
  const std::vector<LayerRange> split = Split(options.model, stages);
  PipelineDriver pipeline(options, split, tokens, weights);
  for (size_t i = 0; i < pipeline.size(); ++i) {
    TransformerStage& stage = pipeline.stage(i);
    Allocator& allocator = pipeline.allocator(i);
    const bool first = i == 0;
    const bool last = i + 1 == pipeline.size();
    const StageMemory expected =
        MemoryOfStage(options.model, split[i],
                      {.micro_batch_size = options.micro_batch_size, .sequence_length = options.sequence_length});
    const int64_t per_micro_batch = expected.activation_bytes;
    const int64_t waiting_for_weights = expected.weight_grad_bytes;
    REQUIRE(stage.BeginIteration(0).ok());
    for (int32_t q = 0; q < options.micro_batches; ++q) {
      CHECK(Activations(pipeline, i) == q * per_micro_batch);
      REQUIRE(stage.Forward(q, {.value = first ? Tensor() : Message(allocator, options)}).ok());
    }
    const int64_t in_flight = options.micro_batches;
    CHECK(Activations(pipeline, i) == in_flight * per_micro_batch);
    for (int32_t q = 0; q < options.micro_batches; ++q) {
      REQUIRE(stage.BackwardInput(q, {.value = last ? Tensor() : Message(allocator, options)}).ok());
      CHECK(Activations(pipeline, i) == (in_flight - q - 1) * per_micro_batch + (q + 1) * waiting_for_weights);
    }
    for (int32_t q = 0; q < options.micro_batches; ++q) {
      REQUIRE(stage.BackwardWeight(q, 0).ok());
      CHECK(Activations(pipeline, i) == (in_flight - q - 1) * waiting_for_weights);
    }
    CHECK(allocator.usage(MemoryCategory::kActivations).peak_bytes ==
          in_flight * std::max(per_micro_batch, waiting_for_weights));
  }
}

TEST_CASE("model states are the memory model's bytes, and an iteration leaves nothing behind") {
  const bool tied = GENERATE(false, true);
  TransformerStageOptions options = SmallOptions(tied);
  SetFamily(GENERATE(range(0, kFamilyVariants)), options.model);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(1);
  const std::vector<LayerRange> split = Split(options.model, 2);
  PipelineDriver pipeline(options, split, tokens, weights);
  pipeline.Iterate(0, DriveOrder::k1F1B);
  std::vector<int64_t> after_first;
  for (size_t i = 0; i < pipeline.size(); ++i) {
    const Allocator& allocator = pipeline.allocator(i);
    const StageMemory expected =
        MemoryOfStage(options.model, split[i],
                      {.micro_batch_size = options.micro_batch_size, .sequence_length = options.sequence_length});
    CHECK(allocator.usage(MemoryCategory::kWeights).bytes == expected.weight_bytes);
    CHECK(allocator.usage(MemoryCategory::kGradients).bytes == expected.gradient_bytes);
    CHECK(allocator.usage(MemoryCategory::kOptimizer).bytes == expected.optimizer_bytes);
    CHECK(allocator.usage(MemoryCategory::kActivations).bytes == 0);
    CHECK(allocator.usage(MemoryCategory::kTransport).bytes == 0);
    after_first.push_back(allocator.total().bytes);
  }
  pipeline.Iterate(1, DriveOrder::kGpipe);
  for (size_t i = 0; i < pipeline.size(); ++i) {
    CHECK(pipeline.allocator(i).total().bytes == after_first[i]);
  }
}

TEST_CASE("a stage that does not fit is an error that names the category, and gives everything back") {
  const TransformerStageOptions small = SmallOptions(true);
  TransformerStageOptions options = small;
  options.layers = Split(options.model, 1).front();
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(1);
  Allocator too_small_for_weights(10'000);
  auto backend = *CpuBackend::Create(1, too_small_for_weights);
  const auto none = TransformerStage::Create(options, too_small_for_weights, *backend, &tokens, weights);
  CHECK(none.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(too_small_for_weights.total().bytes == 0);

  Allocator too_small_for_activations(1'000'000);
  auto other = *CpuBackend::Create(1, too_small_for_activations);
  const auto stage = TransformerStage::Create(options, too_small_for_activations, *other, &tokens, weights);
  REQUIRE(stage.ok());
  REQUIRE((*stage)->BeginIteration(0).ok());
  absl::Status status;
  for (int32_t q = 0; q < options.micro_batches && status.ok(); ++q) {
    status = (*stage)->Forward(q, {}).status();
  }
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("activations"));
}

TEST_CASE("options that cannot be trained are refused with the key and the remedy") {
  TransformerStageOptions options = SmallOptions(true);
  options.layers = Split(options.model, 1).front();
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(1);
  Allocator allocator(1 << 26);
  const auto backend = *CpuBackend::Create(1, allocator);
  const auto error = [&](const TransformerStageOptions& changed) {
    return TransformerStage::Create(changed, allocator, *backend, &tokens, weights).status();
  };
  TransformerStageOptions changed = options;
  changed.training.tokens_per_iteration = 81;
  CHECK_THAT(std::string(error(changed).message()), Catch::Matchers::Contains("training.tokens_per_iteration is 81"));
  changed = options;
  changed.model.max_position_embeddings = 5;
  CHECK_THAT(std::string(error(changed).message()), Catch::Matchers::Contains("max_position_embeddings 5"));
}

TEST_CASE("a token outside the vocabulary is reported with its value") {
  TransformerStageOptions options = SmallOptions(false);
  RandomTokens tokens(options.model.vocab_size + 1000, options.sequence_length);
  RandomWeights weights(1);
  PipelineDriver pipeline(options, Split(options.model, 1), tokens, weights);
  REQUIRE(pipeline.stage(0).BeginIteration(0).ok());
  const absl::Status status = pipeline.stage(0).Forward(0, {}).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("model.vocab_size 37"));
}

}  // namespace
}  // namespace geopipe
