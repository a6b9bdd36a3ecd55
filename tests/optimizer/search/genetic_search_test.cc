#include "optimizer/search/genetic_search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "optimizer/search/exhaustive_search.h"
#include "tests/optimizer/search/landscapes.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using test::Landscape;
using test::RandomLandscape;
using test::RandomLayeredLandscape;

TEST_CASE("genetic search finds the exhaustive optimum, ties and all") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  Prng prng(seed);
  int found = 0;
  constexpr int kLandscapes = 100;
  for (int i = 0; i < kLandscapes; ++i) {
    const Landscape landscape = i % 4 < 2 ? RandomLandscape(prng) : RandomLayeredLandscape(prng);
    const SearchOutcome exhaustive = *ExhaustiveSearch(landscape.Problem(false));
    const SearchOutcome genetic = GeneticSearch(landscape.Problem(i % 2 == 0), {.seed = prng.Next()});
    found += genetic.evaluated.front() == exhaustive.evaluated.front() ? 1 : 0;
  }
  CHECK(found >= kLandscapes - 1);
}

TEST_CASE("same seed, same outcome, each genome is evaluated once, within the budget") {
  Prng prng(TestSeed());
  const Landscape landscape = RandomLandscape(prng);
  SearchProblem problem = landscape.Problem(false);
  std::multiset<Genome> asked;
  const auto evaluate = problem.evaluate;
  problem.evaluate = [&](std::span<const Genome> genomes) {
    asked.insert(genomes.begin(), genomes.end());
    return evaluate(genomes);
  };
  for (const int64_t budget : {1, 2, 17, 60, 100'000}) {
    asked.clear();
    const GeneticOptions options{.seed = 9, .max_evaluations = budget};
    const SearchOutcome first = GeneticSearch(problem, options);
    CHECK(first.evaluations <= budget);
    CHECK(std::ssize(asked) == first.evaluations);
    CHECK(std::set<Genome>(asked.begin(), asked.end()).size() == asked.size());
    const SearchOutcome second = GeneticSearch(problem, options);
    CHECK(first.evaluated == second.evaluated);
    CHECK(first.best_so_far_ns == second.best_so_far_ns);
    CHECK(std::is_sorted(first.best_so_far_ns.rbegin(), first.best_so_far_ns.rend()));
  }
}

TEST_CASE("where nothing is feasible, the least excess leads") {
  Landscape landscape;
  landscape.crossings = 2;
  landscape.max_delta_n = 6;
  landscape.hides = {3, 3};
  landscape.memory = -4;  // even ΔN = 0 exceeds by 4
  landscape.floor_ns = {1000};
  const SearchOutcome outcome = GeneticSearch(landscape.Problem(false), {});
  CHECK_FALSE(outcome.evaluated.front().fitness.feasible);
  CHECK(outcome.evaluated.front().fitness.excess == 4);
  CHECK(outcome.evaluated.front().genome == Genome{0, 0, 0, 0, 0});
  CHECK(outcome.best_so_far_ns.empty());
}

TEST_CASE("repair comes before evaluation, seeds are evaluated, a caller can stop") {
  Landscape landscape;
  landscape.crossings = 2;
  landscape.max_delta_n = 8;
  landscape.hides = {8, 8};
  landscape.memory = 9;
  landscape.floor_ns = {1000};
  SearchProblem problem = landscape.Problem(false);
  problem.seeds = {{0, 0, 0, 3, 3}};
  problem.repair = [&](Genome& genome) {
    while (!landscape.Evaluate(genome).feasible) {
      --*std::max_element(genome.begin(), genome.end());
    }
  };
  int generations = 0;
  const SearchOutcome outcome =
      GeneticSearch(problem, {.max_evaluations = 40, .should_stop = [&] { return ++generations > 1; }});
  CHECK(outcome.stopped_early);
  CHECK(std::all_of(outcome.evaluated.begin(), outcome.evaluated.end(),
                    [](const Evaluated& evaluated) { return evaluated.fitness.feasible; }));
  CHECK(std::any_of(outcome.evaluated.begin(), outcome.evaluated.end(), [](const Evaluated& evaluated) {
    return evaluated.genome == Genome{0, 0, 0, 3, 3};
  }));
}

TEST_CASE("a kind without ΔN is evaluated with none, and its optimum is found") {
  Landscape landscape;
  landscape.kinds = 2;
  landscape.micro_batches = 2;
  landscape.crossings = 2;
  landscape.max_delta_n = 8;
  landscape.hides = {0, 0};
  landscape.memory = 100;
  landscape.floor_ns = {1000, 900, 800, 850};
  const SearchOutcome outcome = GeneticSearch(landscape.Problem(true), {});
  CHECK(outcome.evaluated.front().genome == Genome{1, 0, 0, 0, 0});
}

TEST_CASE("what cannot beat a given time is not evaluated") {
  Prng prng(TestSeed());
  const Landscape landscape = RandomLandscape(prng);
  const int64_t best_ns = GeneticSearch(landscape.Problem(true), {}).evaluated.front().fitness.iteration_ns;
  CHECK(GeneticSearch(landscape.Problem(true), {.beat_ns = 1}).evaluations == 0);
  const SearchOutcome beaten = GeneticSearch(landscape.Problem(true), {.beat_ns = best_ns + 1});
  CHECK(beaten.evaluated.front().fitness.iteration_ns == best_ns);
  CHECK(beaten.evaluations <= GeneticSearch(landscape.Problem(true), {}).evaluations);
}

TEST_CASE("who stops the search need not wait for a long list of seeds, and still gets a first batch") {
  Landscape landscape;
  landscape.crossings = 4;
  landscape.max_delta_n = 100;
  landscape.hides = {50, 50, 50, 50};
  landscape.memory = 10'000;
  landscape.floor_ns = {1000};
  SearchProblem problem = landscape.Problem(true);
  for (int32_t i = 0; i < 5000; ++i) {
    problem.seeds.push_back({0, 0, 0, i % 100, i / 100, 0, 0});
  }
  int64_t repairs = 0;
  problem.repair = [&](Genome&) { ++repairs; };
  const SearchOutcome outcome = GeneticSearch(problem, {.should_stop = [] { return true; }});
  CHECK(outcome.stopped_early);
  CHECK(repairs < 1000);
  CHECK(outcome.evaluations > 0);
  CHECK(outcome.evaluations <= 16);
}

}  // namespace
}  // namespace geopipe
