#include "optimizer/search/prng.h"

#include <array>
#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("the sequence is xoshiro256** seeded by splitmix64") {
  // The published reference code, its state filled by splitmix64 from 0.
  Prng zero(0);
  CHECK(zero.Next() == 0x99ec5f36cb75f2b4);
  CHECK(zero.Next() == 0xbf6e1f784956452a);
  CHECK(zero.Next() == 0x1a5f849d4933e6e0);
}

TEST_CASE("draws below a bound are uniform and stay below it") {
  Prng prng(7);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60'000; ++i) {
    ++counts.at(prng.Below(6));
  }
  for (const int count : counts) {
    CHECK(count > 9'600);
    CHECK(count < 10'400);
  }
  for (int i = 0; i < 100; ++i) {
    CHECK(prng.Below(1) == 0);
    const int64_t value = prng.Between(-3, 3);
    CHECK((value >= -3 && value <= 3));
  }
  // A bound just above half of the range rejects nearly half of the draws, and must not fold them.
  const uint64_t large = (uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) {
    CHECK(prng.Below(large) < large);
  }
  CHECK_FALSE(prng.Chance(0, 5));
  CHECK(prng.Chance(5, 5));
}

TEST_CASE("a split depends on seed and stream alone") {
  Prng drawn(42);
  for (int i = 0; i < 10; ++i) {
    drawn.Next();
  }
  Prng a = Prng(42).Split(3);
  Prng b = drawn.Split(3);
  Prng other_stream = drawn.Split(4);
  Prng other_seed = Prng(43).Split(3);
  const uint64_t first = a.Next();
  CHECK(first == b.Next());
  CHECK(first != other_stream.Next());
  CHECK(first != other_seed.Next());
  CHECK(first != Prng(42).Next());
}

}  // namespace
}  // namespace geopipe
