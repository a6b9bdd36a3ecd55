// Search problems with a known or easily proven optimum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "optimizer/search/genome.h"
#include "optimizer/search/prng.h"

namespace geopipe::test {

// Like a pipeline: the period of (b, s) falls with each crossing's ΔN until what hides it, all crossings must hide
// before the time falls to the floor, and a budget on weighted ΔN stands for memory.
struct Landscape {
  GenomeSpace space;
  std::vector<int32_t> hides;  // per crossing
  int64_t memory = 0;
  std::vector<int64_t> floor_ns;  // per (kind, b, s)

  int64_t Floor(const Genome& genome) const {
    const size_t point =
        (static_cast<size_t>(genome.kind) * space.micro_batch_choices + genome.micro_batch) * space.sequence_choices +
        genome.sequence;
    return floor_ns[point];
  }

  Fitness Evaluate(const Genome& genome) const {
    int64_t held = 0;
    int32_t worst = 0;
    for (size_t crossing = 0; crossing < genome.delta_n.size(); ++crossing) {
      held += static_cast<int64_t>(crossing + 1) * genome.delta_n[crossing];
      worst = std::max(worst, hides[crossing] - genome.delta_n[crossing]);
    }
    if (held > memory) {
      return {.feasible = false, .iteration_ns = 0, .excess = held - memory};
    }
    return {.feasible = true, .iteration_ns = Floor(genome) + 50 * worst, .excess = 0};
  }

  SearchProblem Problem(bool with_bound) const {
    SearchProblem problem;
    problem.space = space;
    problem.evaluate = [this](std::span<const Genome> genomes) {
      std::vector<Fitness> fitness;
      for (const Genome& genome : genomes) {
        fitness.push_back(Evaluate(genome));
      }
      return fitness;
    };
    if (with_bound) {
      problem.lower_bound_ns = [this](const Genome& genome) { return Floor(genome); };
    }
    return problem;
  }
};

inline Landscape RandomLandscape(Prng& prng) {
  Landscape landscape;
  landscape.space.kind_uses_delta_n = {true, false};
  landscape.space.micro_batch_choices = static_cast<int32_t>(prng.Between(1, 3));
  landscape.space.sequence_choices = static_cast<int32_t>(prng.Between(1, 2));
  landscape.space.crossings = static_cast<int32_t>(prng.Between(1, 3));
  landscape.space.max_delta_n = static_cast<int32_t>(prng.Between(4, 11));
  for (int32_t crossing = 0; crossing < landscape.space.crossings; ++crossing) {
    landscape.hides.push_back(static_cast<int32_t>(prng.Between(0, landscape.space.max_delta_n)));
  }
  landscape.memory = prng.Between(0, 40);
  const int32_t points = 2 * landscape.space.micro_batch_choices * landscape.space.sequence_choices;
  for (int32_t point = 0; point < points; ++point) {
    landscape.floor_ns.push_back(prng.Between(1000, 1500));
  }
  return landscape;
}

}  // namespace geopipe::test
