#include "runtime/model/transformer_stage.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

TEST_CASE("activations that are not finite are an error of the stage that makes them") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  const TransformerStageOptions options = SmallOptions(false);
  RandomTokens tokens(options.model.vocab_size, options.sequence_length);
  RandomWeights weights(1);
  const std::vector<LayerRange> split = Split(options.model, 3);
  PipelineDriver pipeline(options, split, tokens, weights);
  Parameter* down =
      pipeline.stage(1).parameters().Find(fmt::format("model.layers.{}.mlp.down_proj.weight", split[1].last));
  REQUIRE(down != nullptr);
  down->value.fp32()[0] = bad;
  for (size_t i = 0; i < pipeline.size(); ++i) {
    REQUIRE(pipeline.stage(i).BeginIteration(0).ok());
  }
  absl::StatusOr<Timed<Tensor>> activation = pipeline.stage(0).Forward(0, {});
  REQUIRE(activation.ok());
  const absl::Status status = pipeline.stage(1).Forward(0, *std::move(activation)).status();
  CHECK(absl::IsOutOfRange(status));
  CHECK(std::string(status.message()).find("the activations it makes are not finite") == 0);
}

}  // namespace
}  // namespace geopipe
