// Search problems with a known or easily proven optimum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/search/genome.h"
#include "optimizer/search/prng.h"

namespace geopipe::test {

// A landscape like a pipeline: the period of (b, s) falls with each crossing's ΔN until what hides it, all crossings
// must hide before the time falls to the floor, and a budget on weighted ΔN stands for memory.
struct Landscape {
  int32_t kinds = 1;  // the first uses ΔN, no other does
  int32_t micro_batches = 1;
  int32_t sequences = 1;
  int32_t crossings = 0;
  int32_t max_delta_n = 0;
  std::vector<int32_t> hides;  // per crossing
  int64_t memory = 0;
  std::vector<int64_t> floor_ns;  // per (kind, b, s)
  // Layers on stages of unequal speed; empty: not searched.
  std::vector<int64_t> layer_ns;
  int32_t layers = 0;

  static constexpr int32_t kChoices = 3;

  GenomeSpace Space() const {
    GenomeSpace space;
    for (const int32_t choices : {kinds, micro_batches, sequences}) {
      space.genes.push_back({.role = GeneRole::kChoice, .least = 0, .greatest = choices - 1});
    }
    const auto stages = static_cast<int32_t>(layer_ns.size());
    for (int32_t stage = 0; stage < stages; ++stage) {
      const int32_t even = layers / stages + (stage < layers % stages ? 1 : 0);
      space.genes.push_back({.role = GeneRole::kShare, .least = 1, .greatest = layers - stages + 1, .rest = even});
    }
    if (stages > 0) {
      space.groups = {{.first = kChoices, .count = stages, .sum = layers}};
    }
    for (int32_t crossing = 0; crossing < crossings; ++crossing) {
      space.genes.push_back(
          {.role = GeneRole::kOrdinal, .least = 0, .greatest = max_delta_n, .rest = 0, .active_for = 1});
    }
    return space;
  }

  int64_t Floor(std::span<const int32_t> genome) const {
    const int32_t point = (genome[0] * micro_batches + genome[1]) * sequences + genome[2];
    return floor_ns[point];
  }

  int64_t SlowestStageNs(std::span<const int32_t> genome) const {
    int64_t slowest_ns = 0;
    for (size_t stage = 0; stage < layer_ns.size() && kChoices + stage < genome.size(); ++stage) {
      slowest_ns = std::max(slowest_ns, genome[kChoices + stage] * layer_ns[stage]);
    }
    return slowest_ns;
  }

  Fitness Evaluate(const Genome& genome) const {
    int64_t held = 0;
    int32_t worst = 0;
    const int32_t* delta_n = genome.data() + kChoices + layer_ns.size();
    for (int32_t crossing = 0; crossing < crossings; ++crossing) {
      held += int64_t{crossing + 1} * delta_n[crossing];
      worst = std::max(worst, hides[crossing] - delta_n[crossing]);
    }
    if (held > memory) {
      return {.feasible = false, .iteration_ns = 0, .excess = held - memory};
    }
    return {.feasible = true, .iteration_ns = Floor(genome) + SlowestStageNs(genome) + 50 * worst, .excess = 0};
  }

  SearchProblem Problem(bool with_bound) const {
    SearchProblem problem;
    problem.space = Space();
    problem.evaluate = [this](std::span<const Genome> genomes) {
      std::vector<Fitness> fitness;
      for (const Genome& genome : genomes) {
        fitness.push_back(Evaluate(genome));
      }
      return fitness;
    };
    if (with_bound) {
      problem.lower_bound_ns = [this](std::span<const int32_t> genes) { return Floor(genes) + SlowestStageNs(genes); };
    }
    return problem;
  }
};

inline Landscape RandomLandscape(Prng& prng) {
  Landscape landscape;
  landscape.kinds = 2;
  landscape.micro_batches = static_cast<int32_t>(prng.Between(1, 3));
  landscape.sequences = static_cast<int32_t>(prng.Between(1, 2));
  landscape.crossings = static_cast<int32_t>(prng.Between(1, 3));
  landscape.max_delta_n = static_cast<int32_t>(prng.Between(4, 11));
  for (int32_t crossing = 0; crossing < landscape.crossings; ++crossing) {
    landscape.hides.push_back(static_cast<int32_t>(prng.Between(0, landscape.max_delta_n)));
  }
  landscape.memory = prng.Between(0, 40);
  const int32_t points = 2 * landscape.micro_batches * landscape.sequences;
  for (int32_t point = 0; point < points; ++point) {
    landscape.floor_ns.push_back(prng.Between(1000, 1500));
  }
  return landscape;
}

// The same with layers to share out, and fewer ΔN.
inline Landscape RandomLayeredLandscape(Prng& prng) {
  Landscape landscape = RandomLandscape(prng);
  landscape.crossings = 1;
  landscape.hides.resize(1);
  const int64_t stages = prng.Between(2, 4);
  for (int64_t stage = 0; stage < stages; ++stage) {
    landscape.layer_ns.push_back(prng.Between(20, 60));
  }
  landscape.layers = static_cast<int32_t>(prng.Between(stages, 9));
  return landscape;
}

}  // namespace geopipe::test
