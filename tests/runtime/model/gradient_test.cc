// Gradients of every tensor against central differences of the fp64 reference.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tests/runtime/model/pipeline_driver.h"
#include "tests/runtime/model/reference_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int kElementsPerTensor = 8;

TransformerStageOptions Options(bool tied, int variant) {
  TransformerStageOptions options = SmallOptions(tied);
  options.model.num_hidden_layers = 2;
  options.model.hidden_size = 12;
  options.model.intermediate_size = 20;
  options.model.vocab_size = 11;
  options.model.rope_theta = 100;
  SetFamily(variant, options.model);
  options.micro_batches = 2;
  options.sequence_length = 7;
  options.training.tokens_per_iteration = 28;
  if (variant % 2 == 1) {
    options.document_end = 4;  // one token of eleven: about half of the samples of seven have a document's end
  }
  return options;
}

// Mean loss of the whole iteration 0.
double ReferenceLoss(const TransformerStageOptions& options, const ReferenceModel::Weights& weights) {
  const ReferenceModel reference(options.model, options.document_end);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  double loss = 0;
  for (int64_t sample = 0; sample < options.micro_batches * options.micro_batch_size; ++sample) {
    std::vector<int32_t> inputs(options.sequence_length);
    std::vector<int32_t> targets(options.sequence_length);
    REQUIRE(tokens.Read(0, sample, 1, inputs, targets).ok());
    loss += reference.Loss(weights, inputs, targets);
  }
  return loss / static_cast<double>(options.training.tokens_per_iteration);
}

TEST_CASE("gradients of every tensor agree with finite differences of the fp64 reference") {
  if (kThreadSanitized) {
    return;
  }
  const bool tied = GENERATE(false, true);
  const int64_t stages = GENERATE(1, 2);
  const int variant = GENERATE(range(0, kFamilyVariants));
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed << ", tied " << tied << ", stages " << stages << ", variant " << variant);
  const TransformerStageOptions options = Options(tied, variant);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  LargeRandomWeights weights(seed);
  PipelineDriver pipeline(options, Split(options.model, stages), tokens, weights);
  pipeline.Accumulate(0, DriveOrder::k1F1B);

  ReferenceModel::Weights reference;
  std::vector<std::string> names;
  for (const ParameterTensor& spec : ParameterTensors(options.model, Split(options.model, 1).front())) {
    const std::vector<float> value = pipeline.Value(spec.name);
    reference[spec.name] = {value.begin(), value.end()};
    names.push_back(spec.name);
  }
  constexpr std::array<size_t, kFamilyVariants> kTensorsOfLayer{9, 12, 11, 13, 15};
  REQUIRE(names.size() == (tied ? 2 : 3) + 2 * kTensorsOfLayer.at(variant));
  CHECK(pipeline.Loss() == Approx(ReferenceLoss(options, reference)).epsilon(1e-6));

  std::mt19937_64 random(seed);
  for (const std::string& name : names) {
    const std::vector<float> gradient = pipeline.Gradient(name);
    double magnitude = 0;
    for (const float value : gradient) {
      magnitude = std::max<double>(magnitude, std::abs(value));
    }
    REQUIRE(magnitude > 1e-4);  // a gradient that vanishes would prove nothing
    for (int i = 0; i < kElementsPerTensor; ++i) {
      const size_t at = random() % gradient.size();
      constexpr double kStep = 1e-5;
      double& element = reference[name][at];
      const double original = element;
      element = original + kStep;
      const double above = ReferenceLoss(options, reference);
      element = original - kStep;
      const double below = ReferenceLoss(options, reference);
      element = original;
      INFO(name << "[" << at << "]");
      CHECK(std::abs(gradient[at] - (above - below) / (2 * kStep)) < 2e-5 * magnitude + 2e-7);
    }
  }
}

}  // namespace
}  // namespace geopipe
