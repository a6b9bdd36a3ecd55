#include "runtime/data/samples/sample_mix.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/seed.h"

namespace geopipe {
namespace {

TEST_CASE("a mix has exact shares after every period, and is never off by as much as the number of files") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  std::vector<std::vector<double>> mixes{{1}, {0.7, 0.3}, {3, 1}, {1, 1, 1}, {0.5, 0.25, 0.125, 0.125}, {0.000001, 1}};
  for (int i = 0; i < 20; ++i) {
    auto& weights = mixes.emplace_back();
    for (uint64_t file = 0; file <= random() % 6; ++file) {
      weights.push_back(static_cast<double>(1 + random() % 20) / 20);
    }
  }
  for (const std::vector<double>& weights : mixes) {
    const SampleMix mix(weights);
    double sum = 0;
    for (const double weight : weights) {
      sum += weight;
    }
    std::vector<int64_t> counts(weights.size());
    for (int64_t position = 0; position < 3000; ++position) {
      for (size_t file = 0; file < weights.size(); ++file) {
        const double share = static_cast<double>(position) * weights[file] / sum;
        REQUIRE(std::abs(static_cast<double>(counts[file]) - share) < static_cast<double>(weights.size()));
        REQUIRE(mix.Count(file, position) == counts[file]);
        if (position % mix.period() == 0) {
          REQUIRE(static_cast<double>(counts[file]) == Approx(share).margin(1e-9));
        }
      }
      const SampleMix::Place place = mix.At(position);
      REQUIRE(place.index == counts[place.file]);  // the next of that file
      ++counts[place.file];
    }
  }
  CHECK(SampleMix(std::vector<double>{0.7, 0.3}).period() == 10);
  CHECK(SampleMix(std::vector<double>{0.000001, 1}).period() == 1'000'001);
}

TEST_CASE("a mix is fixed for ever: a resumed job meets the same samples on any machine") {
  const SampleMix mix(std::vector<double>{0.5, 0.2, 0.3});
  std::vector<size_t> files;
  for (int64_t position = 0; position < 10; ++position) {
    files.push_back(mix.At(position).file);
  }
  CHECK(files == std::vector<size_t>{2, 0, 2, 0, 1, 0, 2, 0, 1, 0});
  CHECK(mix.At(int64_t{1} << 60) == SampleMix::Place{.file = 2, .index = 345876451382054093});
}

}  // namespace
}  // namespace geopipe
