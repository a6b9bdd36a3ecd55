#include "optimizer/search/exhaustive_search.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/optimizer/search/landscapes.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using test::Landscape;
using test::RandomLandscape;
using test::RandomLayeredLandscape;

TEST_CASE("of a small space every genome is evaluated exactly once") {
  Prng prng(TestSeed());
  for (int i = 0; i < 6; ++i) {
    const Landscape landscape = i % 2 == 0 ? RandomLandscape(prng) : RandomLayeredLandscape(prng);
    const GenomeSpace space = landscape.Space();
    const Preference preferred(space);
    const SearchOutcome outcome = *ExhaustiveSearch(landscape.Problem(true));
    CHECK(outcome.evaluations == space.size());
    std::set<Genome> seen;
    for (const Evaluated& evaluated : outcome.evaluated) {
      CHECK(space.Contains(evaluated.genome));
      CHECK(seen.insert(evaluated.genome).second);
      CHECK_FALSE(preferred(evaluated, outcome.evaluated.front()));
    }
  }
}

TEST_CASE("branch and bound skips work and not the optimum") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int64_t with = 0;
  int64_t without = 0;
  for (int i = 0; i < 40; ++i) {
    const Landscape landscape = i % 2 == 0 ? RandomLandscape(prng) : RandomLayeredLandscape(prng);
    SearchProblem problem = landscape.Problem(true);
    if (i % 4 < 2) {
      Genome seed_genome;
      for (const Gene& gene : problem.space.genes) {
        seed_genome.push_back(gene.role == GeneRole::kChoice ? 0 : gene.rest);
      }
      problem.seeds = {seed_genome};
    }
    const SearchOutcome bounded = *ExhaustiveSearch(problem, {.whole_space_up_to = 0});
    const SearchOutcome full = *ExhaustiveSearch(landscape.Problem(false));
    REQUIRE(bounded.evaluated.front() == full.evaluated.front());
    with += bounded.evaluations;
    without += full.evaluations;
  }
  CHECK(with < without);
}

TEST_CASE("branch and bound that is to beat a time leaves out what does not, and finds what does") {
  Prng prng(11);
  int64_t beaten = 0;
  int64_t unbeaten = 0;
  for (int i = 0; i < 20; ++i) {
    const Landscape landscape = i % 2 == 0 ? RandomLandscape(prng) : RandomLayeredLandscape(prng);
    const SearchProblem problem = landscape.Problem(true);
    const SearchOutcome full = *ExhaustiveSearch(problem, {.whole_space_up_to = 0});
    const int64_t best_ns = full.evaluated.front().fitness.iteration_ns;
    const SearchOutcome beats = *ExhaustiveSearch(problem, {.whole_space_up_to = 0, .beat_ns = best_ns + 1});
    CHECK(beats.evaluated.front().fitness.iteration_ns == best_ns);
    const SearchOutcome cannot = *ExhaustiveSearch(problem, {.whole_space_up_to = 0, .beat_ns = best_ns});
    for (const Evaluated& evaluated : cannot.evaluated) {
      CHECK((!evaluated.fitness.feasible || evaluated.fitness.iteration_ns >= best_ns));
    }
    beaten += full.evaluations;
    unbeaten += cannot.evaluations;
  }
  CHECK(unbeaten < beaten);
}

TEST_CASE("a space that is too large is refused, and a caller can stop") {
  Landscape landscape;
  landscape.crossings = 2;
  landscape.max_delta_n = 8;
  landscape.hides = {8, 8};
  landscape.memory = 100;
  landscape.floor_ns = {1000};
  for (const bool with_bound : {false, true}) {
    const absl::Status status =
        ExhaustiveSearch(landscape.Problem(with_bound), {.max_evaluations = 3, .whole_space_up_to = 0}).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Catch::Contains("more than exhaustive search takes (3)"));
  }
  landscape.crossings = 3;
  landscape.hides = {8, 8, 8};
  const SearchOutcome stopped = *ExhaustiveSearch(landscape.Problem(false), {.should_stop = [] { return true; }});
  CHECK(stopped.stopped_early);
  CHECK(stopped.evaluations < landscape.Space().size());
}

}  // namespace
}  // namespace geopipe
