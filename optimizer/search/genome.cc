#include "optimizer/search/genome.h"

#include <algorithm>
#include <cstdlib>

namespace geopipe {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Number of ways to share group.sum over the group's genes.
int64_t Shares(const GenomeSpace& space, const ShareGroup& group) {
  int64_t spare = group.sum;
  for (int32_t i = 0; i < group.count; ++i) {
    spare -= space.genes[group.first + i].least;
  }
  if (spare < 0) {
    return 0;
  }
  std::vector<int64_t> ways(static_cast<size_t>(spare) + 1, 0);  // [spent so far]
  ways[0] = 1;
  for (int32_t i = 0; i < group.count; ++i) {
    const int64_t range = space.genes[group.first + i].choices() - 1;
    if (range >= spare) {  // a running sum
      for (int64_t spent = 1; spent <= spare; ++spent) {
        ways[spent] = SaturatingSum(ways[spent], ways[spent - 1]);
      }
      continue;
    }
    std::vector<int64_t> next(ways.size(), 0);
    for (int64_t spent = 0; spent <= spare; ++spent) {
      for (int64_t before = std::max<int64_t>(0, spent - range); before <= spent; ++before) {
        next[spent] = SaturatingSum(next[spent], ways[before]);
      }
    }
    ways = std::move(next);
  }
  return ways.back();
}

}  // namespace

int64_t SaturatingProduct(int64_t a, int64_t b) { return b != 0 && a > kMax / b ? kMax : a * b; }

int64_t SaturatingSum(int64_t a, int64_t b) { return a > kMax - b ? kMax : a + b; }

int32_t GenomeSpace::choice_genes() const {
  const auto first =
      std::find_if(genes.begin(), genes.end(), [](const Gene& g) { return g.role != GeneRole::kChoice; });
  return static_cast<int32_t>(first - genes.begin());
}

int64_t GenomeSpace::size() const {
  int64_t shares = 1;
  for (const ShareGroup& group : groups) {
    shares = SaturatingProduct(shares, Shares(*this, group));
  }
  if (genes.empty()) {
    return shares;
  }
  int64_t total = 0;
  for (int32_t value = genes.front().least; value <= genes.front().greatest; ++value) {
    int64_t product = shares;
    for (size_t gene = 1; gene < genes.size(); ++gene) {
      if (genes[gene].role != GeneRole::kShare && genes[gene].ActiveFor(value)) {
        product = SaturatingProduct(product, genes[gene].choices());
      }
    }
    total = SaturatingSum(total, product);
  }
  return total;
}

bool GenomeSpace::Contains(const Genome& genome) const {
  if (genome.size() != genes.size()) {
    return false;
  }
  for (size_t gene = 0; gene < genes.size(); ++gene) {
    const bool within = genome[gene] >= genes[gene].least && genome[gene] <= genes[gene].greatest;
    if (Active(genome, gene) ? !within : genome[gene] != genes[gene].rest) {
      return false;
    }
  }
  return std::all_of(groups.begin(), groups.end(), [&](const ShareGroup& group) {
    int64_t sum = 0;
    for (int32_t i = 0; i < group.count; ++i) {
      sum += genome[group.first + i];
    }
    return sum == group.sum;
  });
}

void GenomeSpace::MakeCanonical(Genome& genome) const {
  for (size_t gene = 0; gene < genes.size(); ++gene) {
    if (!Active(genome, gene)) {
      genome[gene] = genes[gene].rest;
    } else if (genes[gene].role == GeneRole::kOrdinal) {
      genome[gene] = std::clamp(genome[gene], genes[gene].least, genes[gene].greatest);
    }
  }
}

int64_t Preference::DistanceFromRest(const Genome& genome) const {
  int64_t distance = 0;
  for (size_t gene = 0; gene < genes_.size(); ++gene) {
    if (genes_[gene].role != GeneRole::kChoice) {
      distance += std::abs(int64_t{genome[gene]} - genes_[gene].rest);
    }
  }
  return distance;
}

bool Preference::operator()(const Evaluated& a, const Evaluated& b) const {
  if (a.fitness.feasible != b.fitness.feasible) {
    return a.fitness.feasible;
  }
  if (a.fitness.feasible && a.fitness.iteration_ns != b.fitness.iteration_ns) {
    return a.fitness.iteration_ns < b.fitness.iteration_ns;
  }
  if (!a.fitness.feasible && a.fitness.excess != b.fitness.excess) {
    return a.fitness.excess < b.fitness.excess;
  }
  const int64_t distance_a = DistanceFromRest(a.genome);
  const int64_t distance_b = DistanceFromRest(b.genome);
  return distance_a != distance_b ? distance_a < distance_b : a.genome < b.genome;
}

bool Preference::MayBeat(const Genome& genome, int64_t bound_ns, const Evaluated& best) const {
  if (!best.fitness.feasible || bound_ns != best.fitness.iteration_ns) {
    return !best.fitness.feasible || bound_ns < best.fitness.iteration_ns;
  }
  return (*this)({genome, {.feasible = true, .iteration_ns = bound_ns, .excess = 0}}, best);
}

}  // namespace geopipe
