#include "runtime/data/samples/sample_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>
#include <vector>

#include "tests/support/seed.h"

namespace geopipe {
namespace {

std::vector<int64_t> Values(const SeededPermutation& permutation, int64_t size) {
  std::vector<int64_t> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = permutation(i);
  }
  return values;
}

TEST_CASE("a seeded permutation is a bijection for every size") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  for (const int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000, 4097}) {
    std::vector<int64_t> values = Values(SeededPermutation(seed, 7, size), size);
    std::ranges::sort(values);
    for (int64_t i = 0; i < size; ++i) {
      REQUIRE(values[i] == i);
    }
  }
}

TEST_CASE("the permutation is fixed for ever: a resumed job meets the same samples on any machine") {
  CHECK(Values(SeededPermutation(1, 0, 10), 10) == std::vector<int64_t>{0, 8, 2, 7, 9, 4, 3, 5, 1, 6});
  CHECK(SeededPermutation(42, 3, int64_t{1} << 40)(123456789) == 710741226699);
}

TEST_CASE("seeds and epochs give different permutations, which leave few windows where they were") {
  const std::vector<int64_t> first = Values(SeededPermutation(1, 0, 1000), 1000);
  for (const auto& other : {Values(SeededPermutation(2, 0, 1000), 1000), Values(SeededPermutation(1, 1, 1000), 1000)}) {
    int64_t equal = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      equal += first[i] == other[i] ? 1 : 0;
    }
    CHECK(equal < 10);
  }
  int64_t neighbours = 0;
  for (size_t i = 1; i < first.size(); ++i) {
    neighbours += std::abs(first[i] - first[i - 1]) == 1 ? 1 : 0;
  }
  CHECK(neighbours < 20);
}

TEST_CASE("every epoch reads every window once, whatever the samples of an iteration") {
  for (const int64_t samples : {1, 3, 7, 50}) {
    const SampleOrder order(5, true, 35, samples);
    std::vector<int64_t> windows;
    for (int64_t iteration = 0; static_cast<int64_t>(windows.size()) < 3 * 35; ++iteration) {
      for (int64_t sample = 0; sample < samples; ++sample) {
        windows.push_back(order.Window(iteration, sample));
      }
    }
    for (int epoch = 0; epoch < 3; ++epoch) {
      CHECK(std::set<int64_t>(windows.begin() + 35 * epoch, windows.begin() + 35 * (epoch + 1)).size() == 35);
    }
  }
}

TEST_CASE("a job resumed at any iteration goes on with the very next sample") {
  const SampleOrder whole(9, true, 101, 8);
  std::vector<int64_t> expected;
  for (int64_t iteration = 0; iteration < 40; ++iteration) {
    for (int64_t sample = 0; sample < 8; ++sample) {
      expected.push_back(whole.Window(iteration, sample));
    }
  }
  for (const int64_t restart : {1, 12, 13, 39}) {
    const SampleOrder resumed(9, true, 101, 8);
    for (int64_t iteration = restart; iteration < 40; ++iteration) {
      for (int64_t sample = 0; sample < 8; ++sample) {
        REQUIRE(resumed.Window(iteration, sample) == expected[8 * iteration + sample]);
      }
    }
  }
}

TEST_CASE("without shuffling windows come in the order of the data") {
  const SampleOrder order(9, false, 10, 4);
  CHECK(order.Window(0, 0) == 0);
  CHECK(order.Window(0, 3) == 3);
  CHECK(order.Window(2, 1) == 9);
  CHECK(order.Window(2, 2) == 0);
}

}  // namespace
}  // namespace geopipe
