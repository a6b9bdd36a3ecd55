#include "optimizer/search/moves.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace geopipe {
namespace {

// Longest move of a scan between two ordinal genes.
constexpr int32_t kTransfer = 4;
// Size of a group up to which all pairs are tried; in larger ones, pairs at most kClose apart.
constexpr int32_t kSmallGroup = 12;
constexpr int32_t kClose = 3;
// Most values of one gene, and most pairs of moves, in one scan.
constexpr int32_t kMaxValues = 64;
constexpr size_t kMaxPairedMoves = 72;

bool CanMove(const GenomeSpace& space, const Genome& genome, const Move& move) {
  return genome[move.from] - move.delta >= space.genes[move.from].least &&
         genome[move.gene] + move.delta <= space.genes[move.gene].greatest;
}

void AddSteps(const Genome& genome, const Gene& gene, int32_t index, std::vector<Genome>& found) {
  const int32_t first = std::max(gene.least, genome[index] - kMaxValues / 2);
  const int32_t last = std::min(gene.greatest, genome[index] + kMaxValues / 2);
  for (int32_t value = first; value <= last; ++value) {
    found.push_back(genome);
    found.back()[index] = value;
  }
}

void AddTransfers(const GenomeSpace& space, const Genome& genome, const std::vector<int32_t>& ordinal,
                  std::vector<Genome>& found) {
  for (const int32_t from : ordinal) {
    for (const int32_t to : ordinal) {
      const int32_t spare = std::min(kTransfer, genome[from] - space.genes[from].least);
      for (int32_t less = 1; from != to && less <= spare; ++less) {
        for (int32_t more = 1; more <= kTransfer && genome[to] + more <= space.genes[to].greatest; ++more) {
          found.push_back(genome);
          found.back()[from] -= less;
          found.back()[to] += more;
        }
      }
    }
  }
}

void AddPairs(const GenomeSpace& space, const Genome& genome, std::vector<Move> shares, const std::vector<Move>& steps,
              Prng& prng, std::vector<Genome>& found) {
  // A random part is paired if there are too many.
  for (size_t i = 0; shares.size() > kMaxPairedMoves && i < kMaxPairedMoves; ++i) {
    std::swap(shares[i], shares[i + prng.Below(shares.size() - i)]);
  }
  shares.resize(std::min(shares.size(), kMaxPairedMoves));
  for (const Move& share : shares) {
    Genome moved = genome;
    share.Apply(moved);
    for (const Move& step : steps) {
      found.push_back(moved);
      step.Apply(found.back());
    }
    for (const Move& second : shares) {
      if (CanMove(space, moved, second)) {
        found.push_back(moved);
        second.Apply(found.back());
      }
    }
  }
}

}  // namespace

std::vector<int32_t> OrdinalGenes(const GenomeSpace& space, const Genome& genome) {
  std::vector<int32_t> found;
  for (size_t gene = 0; gene < space.genes.size(); ++gene) {
    const Gene& description = space.genes[gene];
    if (description.role == GeneRole::kOrdinal && description.choices() > 1 && space.Active(genome, gene)) {
      found.push_back(static_cast<int32_t>(gene));
    }
  }
  return found;
}

std::vector<Move> OrdinalSteps(const std::vector<int32_t>& genes) {
  std::vector<Move> moves;
  for (const int32_t gene : genes) {
    moves.push_back({.gene = gene, .delta = -1});
    moves.push_back({.gene = gene, .delta = 1});
  }
  return moves;
}

std::vector<Move> ShareMoves(const GenomeSpace& space, const Genome& genome, Prng& prng) {
  std::vector<Move> moves;
  for (const ShareGroup& group : space.groups) {
    const bool small = group.count <= kSmallGroup;
    const int32_t last = group.first + group.count - 1;
    const auto add = [&](const Move& move) {
      if (move.gene != move.from && CanMove(space, genome, move)) {
        moves.push_back(move);
      }
    };
    for (int32_t to = group.first; to <= last; ++to) {
      for (int32_t from = group.first; from <= last; ++from) {
        if (small || std::abs(to - from) <= kClose) {
          add({.gene = to, .delta = 1, .from = from});
        }
      }
    }
    const int32_t drawn = small ? 0 : 2 * kClose * group.count;
    for (int32_t i = 0; i < drawn; ++i) {
      const auto to = static_cast<int32_t>(prng.Between(group.first, last));
      add({.gene = to, .delta = 1, .from = static_cast<int32_t>(prng.Between(group.first, last))});
    }
  }
  return moves;
}

int32_t GeometricStep(int32_t most, Prng& prng) {
  int32_t step = 1;
  while (step < most && prng.Chance(1, 2)) {
    ++step;
  }
  return step;
}

std::vector<Genome> Scan(const GenomeSpace& space, const Genome& genome, Prng& prng) {
  std::vector<Genome> found;
  for (int32_t gene = 0; gene < space.choice_genes(); ++gene) {
    AddSteps(genome, space.genes[gene], gene, found);
  }
  const std::vector<int32_t> ordinal = OrdinalGenes(space, genome);
  for (const int32_t gene : ordinal) {
    AddSteps(genome, space.genes[gene], gene, found);
  }
  AddTransfers(space, genome, ordinal, found);
  AddPairs(space, genome, ShareMoves(space, genome, prng), OrdinalSteps(ordinal), prng, found);
  return found;
}

}  // namespace geopipe
