// The product's promise: the same b and s give the same losses to the last bit, whoever computes which layers in
// whichever order.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

constexpr int64_t kIterations = 4;

struct Run {
  std::vector<IterationResult> iterations;
  std::vector<float> embedding;
  std::vector<float> last_norm;

  friend bool operator==(const Run&, const Run&) = default;
};

Run Train(const TransformerStageOptions& options, int64_t stages, DriveOrder order) {
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(/*seed=*/5);
  PipelineDriver pipeline(options, Split(options.model, stages), tokens, weights);
  Run run;
  for (int64_t i = 0; i < kIterations; ++i) {
    run.iterations.push_back(pipeline.Iterate(i, order));
  }
  run.embedding = pipeline.Value("model.embed_tokens.weight");
  run.last_norm = pipeline.Value("model.norm.weight");
  return run;
}

TEST_CASE("losses, norms and weights are the same bits for every split and every order") {
  const bool tied = GENERATE(false, true);
  const TransformerStageOptions options = SmallOptions(tied);
  const Run expected = Train(options, 1, DriveOrder::kGpipe);
  CHECK(expected.iterations.front().loss != expected.iterations.back().loss);
  for (const int64_t stages : {1, 2, 3, 6}) {
    for (const DriveOrder order : {DriveOrder::kGpipe, DriveOrder::k1F1B, DriveOrder::kDelayedWeights}) {
      INFO(stages << " stages, order " << static_cast<int>(order) << ", tied " << tied);
      CHECK(Train(options, stages, order) == expected);
    }
  }
}

TEST_CASE("both ends of a tied embedding hold the same weights after every update") {
  const TransformerStageOptions options = SmallOptions(/*tied=*/true);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(/*seed=*/5);
  PipelineDriver pipeline(options, Split(options.model, 3), tokens, weights);
  for (int64_t i = 0; i < kIterations; ++i) {
    pipeline.Iterate(i, DriveOrder::k1F1B);
    const auto first = pipeline.stage(0).parameters().Find("model.embed_tokens.weight")->value.fp32();
    const auto last = pipeline.stage(2).parameters().Find("model.embed_tokens.weight")->value.fp32();
    CHECK(std::vector<float>(first.begin(), first.end()) == std::vector<float>(last.begin(), last.end()));
  }
}

TEST_CASE("without clipping nothing waits for the norm, and large clips change nothing") {
  TransformerStageOptions options = SmallOptions(/*tied=*/true);
  options.training.grad_clip = 1e9;
  const Run with_norm = Train(options, 2, DriveOrder::k1F1B);
  options.training.grad_clip.reset();
  const Run without = Train(options, 2, DriveOrder::k1F1B);
  CHECK(with_norm == without);
}

}  // namespace
}  // namespace geopipe
