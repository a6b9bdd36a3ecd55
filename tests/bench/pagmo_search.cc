#include "tests/bench/pagmo_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <pagmo/algorithm.hpp>
#include <pagmo/algorithms/sade.hpp>
#include <pagmo/algorithms/sga.hpp>
#include <pagmo/population.hpp>
#include <pagmo/problem.hpp>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

constexpr int kMaxRounds = 20;

// Counts and remembers, whatever copies pagmo makes of the problem: a genome that comes again costs nothing.
struct Record {
  int64_t left = 0;
  int64_t best_ns = std::numeric_limits<int64_t>::max();
  std::map<Genome, double> known = {};
};

// One real number per gene, cut down to a whole one; what those of a group have above 1 are weights by which its sum is
// shared out.
struct PagmoProblem {
  const PlanSpace* space = nullptr;
  std::shared_ptr<Record> record = nullptr;

  std::pair<pagmo::vector_double, pagmo::vector_double> get_bounds() const {
    pagmo::vector_double low;
    pagmo::vector_double high;
    for (const Gene& gene : space->genome_space().genes) {
      low.push_back(gene.least);
      high.push_back(gene.greatest + 0.999);
    }
    return {low, high};
  }

  Genome Decode(const pagmo::vector_double& x) const {
    const GenomeSpace& genomes = space->genome_space();
    Genome genome;
    for (size_t gene = 0; gene < x.size(); ++gene) {
      const auto value = static_cast<int32_t>(std::floor(x[gene]));
      genome.push_back(std::clamp(value, genomes.genes[gene].least, genomes.genes[gene].greatest));
    }
    for (const ShareGroup& group : genomes.groups) {
      double weight = 0;
      for (int32_t i = 0; i < group.count; ++i) {
        weight += x[group.first + i] - 1;
      }
      int64_t given = 0;
      for (int32_t i = 0; i < group.count; ++i) {
        const double part = weight > 0 ? (x[group.first + i] - 1) / weight : 0;
        // A split that was encoded comes back.
        const double share = static_cast<double>(group.sum - group.count) * part + 1e-6;
        genome[group.first + i] = 1 + static_cast<int32_t>(std::floor(share));
        given += genome[group.first + i];
      }
      for (int32_t i = 0; given < group.sum; ++i, ++given) {
        ++genome[group.first + i % group.count];
      }
    }
    genomes.MakeCanonical(genome);
    space->Repair(genome);
    return genome;
  }

  static pagmo::vector_double Encode(const Genome& genome) { return {genome.begin(), genome.end()}; }

  pagmo::vector_double fitness(const pagmo::vector_double& x) const {
    Genome genome = Decode(x);
    if (const auto known = record->known.find(genome); known != record->known.end()) {
      return {known->second};
    }
    if (record->left <= 0) {
      return {1e30};
    }
    --record->left;
    const Fitness fitness = space->Evaluate(genome);
    if (fitness.feasible) {
      record->best_ns = std::min(record->best_ns, fitness.iteration_ns);
    }
    const double value = static_cast<double>(fitness.feasible ? fitness.iteration_ns : fitness.excess);
    return {record->known[std::move(genome)] = fitness.feasible ? value : 1e20 + value};
  }
};

}  // namespace

int64_t PagmoBestNs(const PlanSpace& space, PagmoAlgorithm algorithm, int64_t evaluations, uint64_t seed) {
  const auto record = std::make_shared<Record>();
  record->left = evaluations;
  const auto pagmo_seed = static_cast<unsigned>(seed % 1'000'000);
  // Both of pagmo's need some individuals; a small budget is better spent on generations than on a large population.
  const auto individuals = static_cast<unsigned>(std::clamp<int64_t>(evaluations / 8, 8, 20));
  const auto generations = static_cast<unsigned>(std::max<int64_t>(1, evaluations / individuals));
  pagmo::population population(pagmo::problem(PagmoProblem{&space, record}), 0, pagmo_seed);
  // The seeds of the other search, and random individuals.
  for (const Genome& start : space.Seeds()) {
    population.push_back(PagmoProblem::Encode(start));
  }
  while (population.size() < individuals || population.size() % 2 != 0) {
    population.push_back(population.random_decision_vector());
  }
  const pagmo::algorithm chosen = algorithm == PagmoAlgorithm::kSga
                                      ? pagmo::algorithm(pagmo::sga(generations, 0.9, 1., 0.1, 1., 2, "exponential",
                                                                    "polynomial", "tournament", pagmo_seed))
                                      : pagmo::algorithm(pagmo::sade(generations, 2, 1, 1e-6, 1e-6, false, pagmo_seed));
  // Genomes that come again leave evaluations over.
  for (int round = 0; round < kMaxRounds && record->left > 0; ++round) {
    population = chosen.evolve(population);
  }
  if (record->best_ns == std::numeric_limits<int64_t>::max()) {
    Genome rest;
    for (const Gene& gene : space.genome_space().genes) {
      rest.push_back(gene.role == GeneRole::kChoice ? 0 : gene.rest);
    }
    return 2 * space.model().Run(space.CandidateOf(rest)).iteration_ns;
  }
  return record->best_ns;
}

}  // namespace geopipe
