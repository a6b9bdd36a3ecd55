#include "optimizer/search/genome.h"

#include <catch2/catch.hpp>
#include <limits>

namespace geopipe {
namespace {

Evaluated Feasible(int64_t iteration_ns, std::vector<int32_t> delta_n) {
  return {{0, 0, 0, std::move(delta_n)}, {.feasible = true, .iteration_ns = iteration_ns, .excess = 0}};
}

Evaluated Infeasible(int64_t excess, std::vector<int32_t> delta_n) {
  return {{0, 0, 0, std::move(delta_n)}, {.feasible = false, .iteration_ns = 0, .excess = excess}};
}

TEST_CASE("preference: feasible, faster, less ΔN, lexicographic, infeasible by excess") {
  const std::vector<Evaluated> in_order{
      Feasible(10, {9, 9}),   // faster beats everything below
      Feasible(11, {0, 2}),   // less ΔN
      Feasible(11, {1, 2}),   // lexicographic
      Feasible(11, {2, 1}),   //
      Infeasible(5, {3, 3}),  // closer to feasible
      Infeasible(6, {0, 0}),  //
      Infeasible(6, {0, 1}),
  };
  for (size_t i = 0; i < in_order.size(); ++i) {
    for (size_t j = 0; j < in_order.size(); ++j) {
      INFO(i << " " << j);
      CHECK(Preferred(in_order[i], in_order[j]) == (i < j));
    }
  }
}

TEST_CASE("size counts ΔN only for the kinds that have it, and saturates") {
  const GenomeSpace space{{true, false}, 3, 2, 2, 8};
  CHECK(space.size() == 3 * 2 * (81 + 1));
  CHECK(space.Contains({0, 2, 1, {8, 0}}));
  CHECK_FALSE(space.Contains({0, 3, 1, {8, 0}}));
  CHECK_FALSE(space.Contains({0, 2, 1, {9, 0}}));
  CHECK_FALSE(space.Contains({1, 2, 1, {1, 0}}));
  CHECK_FALSE(space.Contains({0, 2, 1, {1}}));
  const GenomeSpace huge{{true}, 1, 1, 64, 8};
  CHECK(huge.size() == std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace geopipe
