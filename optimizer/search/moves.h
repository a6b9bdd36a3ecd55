// Small changes of a genome.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/search/genome.h"
#include "optimizer/search/prng.h"

namespace geopipe {

// Adds delta to one gene, or moves it from one to another.
struct Move {
  int32_t gene = 0;
  int32_t delta = 0;
  int32_t from = -1;  // -1: from nowhere

  void Apply(Genome& genome) const {
    genome[gene] += delta;
    if (from >= 0) {
      genome[from] -= delta;
    }
  }
};

// Active ordinal genes with more than one value.
std::vector<int32_t> OrdinalGenes(const GenomeSpace& space, const Genome& genome);

// One step up or down of each of `genes`.
std::vector<Move> OrdinalSteps(const std::vector<int32_t>& genes);

// Moves of one share between two genes of a group, where both ranges allow it: all pairs of a small group; of a large
// one the close pairs, and as many drawn from `prng`.
std::vector<Move> ShareMoves(const GenomeSpace& space, const Genome& genome, Prng& prng);

// A geometric step, at least one and at most `most`.
int32_t GeometricStep(int32_t most, Prng& prng);

// Every genome of a wider neighbourhood: see GeneticSearch, "scanned".
std::vector<Genome> Scan(const GenomeSpace& space, const Genome& genome, Prng& prng);

}  // namespace geopipe
