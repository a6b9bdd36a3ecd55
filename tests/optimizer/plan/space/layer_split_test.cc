#include "optimizer/plan/space/layer_split.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "optimizer/model/transformer.h"
#include "optimizer/search/prng.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

int64_t LargestNs(const std::vector<StageLoad>& stages, const std::vector<int32_t>& split) {
  int64_t largest_ns = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    largest_ns = std::max(largest_ns, stages[stage].fixed_ns + split[stage] * stages[stage].layer_ns);
  }
  return largest_ns;
}

// The least largest stage time of the stages from `stage` on, by trying everything.
int64_t LeastByTrying(const std::vector<StageLoad>& stages, size_t stage, int64_t layers) {
  if (stage == stages.size()) {
    return layers == 0 ? 0 : std::numeric_limits<int64_t>::max();
  }
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (int64_t count = 1; count <= std::min(layers, stages[stage].most); ++count) {
    const int64_t rest_ns = LeastByTrying(stages, stage + 1, layers - count);
    const int64_t own_ns = stages[stage].fixed_ns + count * stages[stage].layer_ns;
    least_ns = std::min(least_ns, std::max(rest_ns, own_ns));
  }
  return least_ns;
}

TEST_CASE("equal stages are split as SplitLayers does") {
  for (int64_t stages = 1; stages <= 9; ++stages) {
    for (int64_t layers = stages; layers <= 24; ++layers) {
      const ModelSpec model{.num_hidden_layers = layers};
      const std::vector<StageLoad> loads(stages, {.fixed_ns = 0, .layer_ns = 7, .most = layers});
      CHECK(*BalanceLayers(loads, layers) == CountsOf(SplitLayers(model, stages)));
      CHECK(RangesOf(*BalanceLayers(loads, layers)) == SplitLayers(model, stages));
    }
  }
}

TEST_CASE("unequal stages: the largest time is the least there is, within what each holds") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int impossible = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<StageLoad> loads(prng.Between(1, 5));
    for (StageLoad& load : loads) {
      load = {.fixed_ns = prng.Between(0, 40), .layer_ns = prng.Between(1, 30), .most = prng.Between(0, 9)};
    }
    const int64_t layers = prng.Between(1, 14);
    const int64_t least_ns = LeastByTrying(loads, 0, layers);
    const auto split = BalanceLayers(loads, layers);
    REQUIRE(split.has_value() == (least_ns != std::numeric_limits<int64_t>::max()));
    if (!split.has_value()) {
      ++impossible;
      continue;
    }
    CHECK(LargestNs(loads, *split) == least_ns);
    CHECK(LeastStageTimeNs(loads, layers) <= least_ns);
    for (size_t stage = 0; stage < loads.size(); ++stage) {
      CHECK((*split)[stage] <= loads[stage].most);
    }
  }
  CHECK(impossible > 10);
}

}  // namespace
}  // namespace geopipe
