#include "runtime/model/transformer_stage.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "tests/runtime/model/pipeline_driver.h"

namespace geopipe {
namespace {

TEST_CASE("activations that are not finite are those of the stage that makes them, and of no later one") {
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
  pipeline.Accumulate(0, DriveOrder::k1F1B);
  CHECK_FALSE(pipeline.Scalars(0, false).not_finite.has_value());
  CHECK(pipeline.Scalars(1, false).not_finite == 0);
  const IterationScalars last = pipeline.Scalars(2, false);
  CHECK_FALSE(last.not_finite.has_value());
  CHECK_FALSE(last.loss.has_value());
}

}  // namespace
}  // namespace geopipe
