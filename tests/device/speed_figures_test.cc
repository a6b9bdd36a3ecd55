#include "tests/device/speed_figures.h"

#include <catch2/catch.hpp>

#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST_CASE("a figure is the median, and what lies between the tenth and the ninetieth percentile") {
  const Figure one = FigureOf({7});
  CHECK(one.median_us == 7);
  CHECK(one.spread_us == 0);
  CHECK(FigureOf({4, 1, 3, 2}).median_us == 2.5);
  const Figure eleven = FigureOf({10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1000});
  CHECK(eleven.median_us == 6);
  CHECK(eleven.spread_us == 8);  // an outlier on either side counts for nothing
}

TEST_CASE("a row tells rates and its share of the ceiling that it is set against") {
  using Against = SpeedRow::Against;
  const Ceilings ceilings = {.flops_per_s = 800e12, .copy_bytes_per_s = 4e12};
  SpeedRow row = {.name = "product",
                  .shape = "7B",
                  .type = "bf16",
                  .figure = {.median_us = 1000, .spread_us = 3},
                  .flops = 600'000'000'000,
                  .bytes = 1'000'000'000,
                  .against = Against::kProducts,
                  .note = "adds"};
  REQUIRE(CellsOf(row, ceilings).size() == SpeedColumns().size());
  CHECK(CellsOf(row, ceilings) == std::vector<std::string>{"product", "7B", "bf16", "1000.00", "3.00", "600000000000",
                                                           "1000000000", "600", "1000", "75.0", "adds"});
  row.against = Against::kCopies;
  CHECK(CellsOf(row, ceilings)[9] == "25.0");
  CHECK(CellsOf(row, {}).at(9).empty());  // no ceiling was measured
  row.against = Against::kNothing;
  row.flops = 0;
  CHECK(CellsOf(row, ceilings) ==
        std::vector<std::string>{"product", "7B", "bf16", "1000.00", "3.00", "", "1000000000", "", "1000", "", "adds"});
  const std::vector<std::string> told = CellsOf("layer 7B", "left out");
  CHECK(told.size() == SpeedColumns().size());
  CHECK(told.front() == "layer 7B");
  CHECK(told.back() == "left out");
}

TEST_CASE("a budget allows what ends in time") {
  FakeClock clock;
  const Budget budget(clock, clock.NowNs() + 10 * kMs);
  CHECK(budget.Allows(10 * kMs));
  CHECK_FALSE(budget.Allows(10 * kMs + 1));
  clock.AdvanceNs(4 * kMs);
  CHECK(budget.Allows(6 * kMs));
  CHECK_FALSE(budget.Allows(6 * kMs + 1));
  clock.AdvanceNs(7 * kMs);
  CHECK_FALSE(budget.Allows(0));
}

TEST_CASE("all sets but the one in use are larger than the cache, or a set is by far") {
  constexpr int64_t kCache = 60;
  for (int64_t operand = 1; operand < 5 * kCache; ++operand) {
    const int64_t sets = SetsOf(operand, kCache);
    CHECK((sets > 1 ? (sets - 1) * operand > kCache : operand >= 4 * kCache));
  }
  CHECK(SetsOf(4 * kCache, kCache) == 1);
}

TEST_CASE("a round has so many samples or takes so long, and a sample is long enough") {
  // Samples of 20 runs of 25 us, 20 of them.
  CHECK(PlanRound(25'000, 20, 500'000, 300 * kMs) == RoundPlan{.samples = 20, .runs = 20});
  // Runs of 25 ms: as many as 300 ms hold.
  CHECK(PlanRound(25 * kMs, 20, 500'000, 300 * kMs) == RoundPlan{.samples = 12, .runs = 1});
  // Three of a second each.
  CHECK(PlanRound(1000 * kMs, 20, 500'000, 300 * kMs) == RoundPlan{.samples = 3, .runs = 1});
  // So short that a sample would be too many runs.
  CHECK(PlanRound(0, 20, 500'000, 300 * kMs) == RoundPlan{.samples = 20, .runs = 64});
  CHECK(PlanRound(1000 * kMs, 2, 0, 10 * kMs) == RoundPlan{.samples = 2, .runs = 1});
}

}  // namespace
}  // namespace geopipe
