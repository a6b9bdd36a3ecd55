#include "optimizer/plan/space/splits.h"

#include <catch2/catch.hpp>
#include <set>

namespace geopipe {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

Lists SplitsOf(int64_t sum, const std::vector<int64_t>& most) {
  Lists all;
  ForEachSplit(sum, most, [&](const std::vector<int64_t>& split) { all.push_back(split); });
  return all;
}

TEST_CASE("every split within its limits comes once, in order") {
  CHECK(SplitsOf(5, {3, 9}) == Lists{{1, 4}, {2, 3}, {3, 2}});
  CHECK(SplitsOf(5, {9, 3}) == Lists{{2, 3}, {3, 2}, {4, 1}});
  CHECK(SplitsOf(4, {1, 2, 1}) == Lists{{1, 2, 1}});
  CHECK(SplitsOf(4, {1, 1, 1}).empty());
  CHECK(SplitsOf(2, {2, 2, 2}).empty());
  CHECK(SplitsOf(3, {3}) == Lists{{3}});
  CHECK(SplitsOf(3, {2}).empty());
}

TEST_CASE("splits are counted, as far as that matters") {
  for (int64_t sum = 1; sum <= 9; ++sum) {
    for (int64_t count = 1; count <= sum; ++count) {
      const Lists all = SplitsOf(sum, std::vector<int64_t>(static_cast<size_t>(count), sum));
      CHECK(std::set<std::vector<int64_t>>(all.begin(), all.end()).size() == all.size());
      CHECK(SplitCount(sum, count, 1'000) == std::ssize(all));
      CHECK((SplitCount(sum, count, 10) > 10) == (std::ssize(all) > 10));
    }
  }
  CHECK(SplitCount(64, 32, 1'000'000) > 1'000'000);
}

}  // namespace
}  // namespace geopipe
