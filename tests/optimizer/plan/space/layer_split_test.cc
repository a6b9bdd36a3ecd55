#include "optimizer/plan/space/layer_split.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <vector>

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

// One layer after the other to where the time after it is least, then the more central stage, then the later one.
std::vector<int32_t> OneByOne(const std::vector<StageLoad>& stages, int64_t layers) {
  const auto count = std::ssize(stages);
  std::vector<int32_t> split(stages.size(), 1);
  for (int64_t left = layers - count; left > 0; --left) {
    std::tuple<int64_t, int64_t, int64_t> best{std::numeric_limits<int64_t>::max(), 0, 0};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t time_ns = stages[i].fixed_ns + (split[i] + 1) * stages[i].layer_ns;
      if (split[i] < stages[i].most) {
        best = std::min(best, std::tuple(time_ns, std::abs(2 * i - (count - 1)), -i));
      }
    }
    ++split[-std::get<2>(best)];
  }
  return split;
}

TEST_CASE("many layers are given at once as they would be one by one") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  for (int i = 0; i < 2'000; ++i) {
    std::vector<StageLoad> loads(prng.Between(1, 12));
    const bool few_kinds = prng.Chance(1, 2);  // with many equals
    const int64_t scale = prng.Chance(1, 4) ? 1'000'000'000 : 1;
    for (StageLoad& load : loads) {
      load = {.fixed_ns = scale * (few_kinds ? prng.Between(0, 1) * 40 : prng.Between(0, 400)),
              .layer_ns = scale * (few_kinds ? prng.Between(1, 2) * 10 : prng.Between(0, 60)),
              .most = prng.Chance(1, 3) ? prng.Between(1, 20) : 200};
    }
    const int64_t layers = std::ssize(loads) + prng.Between(0, 120);
    if (const auto split = BalanceLayers(loads, layers)) {
      REQUIRE(*split == OneByOne(loads, layers));
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
