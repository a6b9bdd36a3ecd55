#include "optimizer/search/exhaustive_search.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/optimizer/search/landscapes.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using test::Landscape;
using test::RandomLandscape;

TEST_CASE("without a bound every genome is evaluated exactly once") {
  Prng prng(TestSeed());
  const Landscape landscape = RandomLandscape(prng);
  const SearchOutcome outcome = *ExhaustiveSearch(landscape.Problem(false));
  CHECK(outcome.evaluations == landscape.space.size());
  std::set<Genome> seen;
  for (const Evaluated& evaluated : outcome.evaluated) {
    CHECK(landscape.space.Contains(evaluated.genome));
    CHECK(seen.insert(evaluated.genome).second);
    CHECK_FALSE(Preferred(evaluated, outcome.evaluated.front()));
  }
}

TEST_CASE("the bound skips work and not the optimum") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int64_t with = 0;
  int64_t without = 0;
  for (int i = 0; i < 20; ++i) {
    const Landscape landscape = RandomLandscape(prng);
    const SearchOutcome bounded = *ExhaustiveSearch(landscape.Problem(true));
    const SearchOutcome full = *ExhaustiveSearch(landscape.Problem(false));
    REQUIRE(bounded.evaluated.front() == full.evaluated.front());
    with += bounded.evaluations;
    without += full.evaluations;
  }
  CHECK(with < without);
}

TEST_CASE("a space that is too large is refused, and a caller can stop") {
  Prng prng(1);
  const Landscape landscape = RandomLandscape(prng);
  const absl::Status status = ExhaustiveSearch(landscape.Problem(false), {.max_evaluations = 3}).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("more than exhaustive search takes (3)"));
  const SearchOutcome stopped = *ExhaustiveSearch(landscape.Problem(false), {.should_stop = [] { return true; }});
  CHECK(stopped.stopped_early);
  CHECK(stopped.evaluations < landscape.space.size());
}

}  // namespace
}  // namespace geopipe
