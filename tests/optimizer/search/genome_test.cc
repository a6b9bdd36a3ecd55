#include "optimizer/search/genome.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

namespace geopipe {
namespace {

Gene Choice(int32_t choices) { return {.role = GeneRole::kChoice, .least = 0, .greatest = choices - 1}; }

Gene DeltaN(int32_t greatest, uint64_t active_for = kAlwaysActive) {
  return {.role = GeneRole::kOrdinal, .least = 0, .greatest = greatest, .rest = 0, .active_for = active_for};
}

Gene Layers(int32_t greatest, int32_t rest) {
  return {.role = GeneRole::kShare, .least = 1, .greatest = greatest, .rest = rest};
}

Evaluated Feasible(int64_t iteration_ns, Genome genome) {
  return {std::move(genome), {.feasible = true, .iteration_ns = iteration_ns, .excess = 0}};
}

Evaluated Infeasible(int64_t excess, Genome genome) {
  return {std::move(genome), {.feasible = false, .iteration_ns = 0, .excess = excess}};
}

TEST_CASE("preference: feasible, faster, nearer to rest, lexicographic, infeasible by excess") {
  const GenomeSpace space{{Choice(2), Layers(5, 3), Layers(5, 3), DeltaN(9), DeltaN(9)}, {{1, 2, 6}}};
  const Preference preferred(space);
  const std::vector<Evaluated> in_order{
      Feasible(10, {0, 1, 5, 9, 9}),   // faster beats everything below
      Feasible(11, {0, 3, 3, 0, 2}),   // less ΔN
      Feasible(11, {1, 3, 3, 0, 2}),   // of choices only the order counts
      Feasible(11, {0, 2, 4, 0, 1}),   // two layers off are as far as two of ΔN
      Feasible(11, {0, 3, 3, 1, 2}),   // lexicographic
      Feasible(11, {0, 3, 3, 2, 1}),   //
      Infeasible(5, {0, 3, 3, 3, 3}),  // closer to feasible
      Infeasible(6, {0, 3, 3, 0, 0}),  //
      Infeasible(6, {0, 3, 3, 0, 1}),
  };
  for (size_t i = 0; i < in_order.size(); ++i) {
    for (size_t j = 0; j < in_order.size(); ++j) {
      INFO(i << " " << j);
      CHECK(preferred(in_order[i], in_order[j]) == (i < j));
    }
  }
  const Evaluated best = Feasible(11, {0, 3, 3, 1, 2});
  CHECK(preferred.MayBeat({1, 1, 5, 9, 9}, 10, best));
  CHECK(preferred.MayBeat({0, 3, 3, 0, 2}, 11, best));
  CHECK_FALSE(preferred.MayBeat({0, 3, 3, 2, 1}, 11, best));
  CHECK_FALSE(preferred.MayBeat({0, 3, 3, 0, 0}, 12, best));
  CHECK(preferred.MayBeat({0, 3, 3, 9, 9}, 99, Infeasible(1, {0, 3, 3, 0, 0})));
}

TEST_CASE("size counts genes only where they are active, shares by their sum, and saturates") {
  const GenomeSpace space{{Choice(2), Choice(3), Choice(2), DeltaN(8, 1), DeltaN(8, 1)}, {}};
  CHECK(space.size() == 3 * 2 * (81 + 1));
  CHECK(space.choice_genes() == 3);
  CHECK(space.Contains({0, 2, 1, 8, 0}));
  CHECK_FALSE(space.Contains({0, 3, 1, 8, 0}));
  CHECK_FALSE(space.Contains({0, 2, 1, 9, 0}));
  CHECK_FALSE(space.Contains({1, 2, 1, 1, 0}));
  CHECK_FALSE(space.Contains({0, 2, 1, 1}));
  Genome genome{1, 2, 1, 12, 3};
  space.MakeCanonical(genome);
  CHECK(genome == Genome{1, 2, 1, 0, 0});
  genome = {0, 2, 1, 12, -3};
  space.MakeCanonical(genome);
  CHECK(genome == Genome{0, 2, 1, 8, 0});

  GenomeSpace huge{{Choice(1)}, {}};
  huge.genes.resize(65, DeltaN(8));
  CHECK(huge.size() == std::numeric_limits<int64_t>::max());

  // Compositions of 10 into 4 positive parts: C(9, 3). With at most 3 in each part, the ways to spend 6 on four parts
  // of at most 2: 10.
  const GenomeSpace shares{{Choice(1), Layers(7, 3), Layers(7, 3), Layers(7, 2), Layers(7, 2)}, {{1, 4, 10}}};
  CHECK(shares.size() == 84);
  CHECK(shares.Contains({0, 7, 1, 1, 1}));
  CHECK_FALSE(shares.Contains({0, 6, 1, 1, 1}));
  const GenomeSpace narrow{{Choice(1), Layers(3, 3), Layers(3, 3), Layers(3, 2), Layers(3, 2)}, {{1, 4, 10}}};
  CHECK(narrow.size() == 10);
}

}  // namespace
}  // namespace geopipe
