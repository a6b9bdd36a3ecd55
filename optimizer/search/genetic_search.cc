#include "optimizer/search/genetic_search.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/search/moves.h"
#include "optimizer/search/prng.h"

namespace geopipe {
namespace {

// Most niches that are all begun; of more, only those that random genomes fall into.
constexpr int64_t kMaxNiches = 1024;
// Niches whose best is refined in one generation.
constexpr int32_t kRefinedNiches = 4;
// Proposals between questions whether to stop: repairing and bounding them can take long, too.
constexpr int64_t kProposalsBetweenStops = 256;
// Number of ordinal genes up to which any two change together; of more, only those at most kCloseOrdinals apart.
constexpr size_t kFewOrdinals = 8;
constexpr size_t kCloseOrdinals = 3;

class Genetic {
 public:
  Genetic(const SearchProblem& problem, const GeneticOptions& options)
      : problem_(problem),
        space_(problem.space),
        options_(options),
        preferred_(problem.space),
        choices_(static_cast<size_t>(problem.space.choice_genes())),
        size_(problem.space.size()),
        prng_(options.seed) {
    GP_CHECK(options.population >= 4 && options.max_evaluations >= 1 && options.batch >= 1);
    GP_CHECK(choices_ >= 1, "the first gene must be a choice");
  }

  SearchOutcome Run() {
    ProposeInitial();
    Generation();
    int32_t stale = 0;
    while (stale < options_.patience && !Spent() && !outcome_.stopped_early && !population_.empty()) {
      const Genome best_before = population_.front().genome;
      const bool refined = ProposeRefinements() || ProposeScan();
      ProposeOffspring();
      Generation();
      stale = refined || population_.front().genome != best_before ? 0 : stale + 1;
    }
    for (auto& [genome, fitness] : known_) {
      outcome_.evaluated.push_back({genome, fitness});
    }
    std::sort(outcome_.evaluated.begin(), outcome_.evaluated.end(), preferred_);
    outcome_.evaluations = static_cast<int64_t>(known_.size());
    return std::move(outcome_);
  }

 private:
  struct Proposal {
    Genome genome;
    int64_t bound_ns = 0;
  };

  bool Spent() const {
    const auto known = static_cast<int64_t>(known_.size());
    return known >= options_.max_evaluations || known >= size_;
  }

  bool RuledOut(const Genome& genome, int64_t bound_ns) const {
    if (problem_.lower_bound_ns && bound_ns >= options_.beat_ns) {
      return true;
    }
    return !population_.empty() && !preferred_.MayBeat(genome, bound_ns, population_.front());
  }

  // Puts a candidate into the generation, made canonical and repaired.
  void Propose(Genome genome) {
    const bool has_some = !proposals_.empty() || !population_.empty();
    if (++proposed_count_ % kProposalsBetweenStops == 0 && has_some) {
      AskToStop();
    }
    if (outcome_.stopped_early) {
      return;
    }
    space_.MakeCanonical(genome);
    if (problem_.repair) {
      problem_.repair(genome);
    }
    GP_CHECK(space_.Contains(genome));
    if (known_.contains(genome) || !proposed_.insert(genome).second) {
      return;
    }
    const int64_t bound_ns = problem_.lower_bound_ns ? problem_.lower_bound_ns(genome) : 0;
    if (!RuledOut(genome, bound_ns)) {
      proposals_.push_back({std::move(genome), bound_ns});
    }
  }

  // Evaluates the proposals, those with the least bound first, a batch at a time and as far as the budget allows.
  void Generation() {
    std::stable_sort(proposals_.begin(), proposals_.end(),
                     [](const Proposal& a, const Proposal& b) { return a.bound_ns < b.bound_ns; });
    const size_t known_before = known_.size();
    std::vector<Genome> batch;
    // A search that is stopped still evaluates a first batch, so that it has a result.
    for (size_t next = 0; next < proposals_.size() && !Spent() && (!outcome_.stopped_early || population_.empty());) {
      const auto left = static_cast<size_t>(options_.max_evaluations) - known_.size();
      const size_t most = std::min(left, static_cast<size_t>(options_.batch));
      batch.clear();
      for (; next < proposals_.size() && batch.size() < most; ++next) {
        if (!RuledOut(proposals_[next].genome, proposals_[next].bound_ns)) {
          batch.push_back(std::move(proposals_[next].genome));
        }
      }
      EvaluateBatch(batch);
    }
    proposals_.clear();
    proposed_.clear();
    if (known_.size() == known_before) {
      AskToStop();  // bounds alone can take long, too
    }
  }

  void AskToStop() {
    outcome_.stopped_early = outcome_.stopped_early || (options_.should_stop && options_.should_stop());
  }

  void EvaluateBatch(std::vector<Genome>& batch) {
    if (batch.empty()) {
      return;
    }
    const std::vector<Fitness> fitness = problem_.evaluate(batch);
    GP_CHECK(fitness.size() == batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      known_.emplace(batch[i], fitness[i]);
      population_.push_back({std::move(batch[i]), fitness[i]});
    }
    Survive();
    if (population_.front().fitness.feasible) {
      outcome_.best_so_far_ns.push_back(population_.front().fitness.iteration_ns);
    }
    AskToStop();
  }

  Genome NicheOf(const Genome& genome) const {
    return {genome.begin(), genome.begin() + static_cast<std::ptrdiff_t>(choices_)};
  }

  // True when the niche may hold a better genome than the best of all.
  bool InTheRace(const Genome& niche) {
    if (!problem_.lower_bound_ns || !population_.front().fitness.feasible) {
      return true;
    }
    const auto [entry, added] = niche_bound_ns_.try_emplace(niche, 0);
    if (added) {
      entry->second = problem_.lower_bound_ns(niche);
    }
    return entry->second <= population_.front().fitness.iteration_ns;
  }

  void Survive() {
    std::sort(population_.begin(), population_.end(), preferred_);
    std::vector<Evaluated> survivors;
    std::set<Genome> niches;
    for (Evaluated& individual : population_) {
      const Genome niche = NicheOf(individual.genome);
      const bool leads_niche = niches.insert(niche).second;
      const bool among_best = survivors.size() < static_cast<size_t>(options_.population);
      if (survivors.empty() || ((among_best || leads_niche) && InTheRace(niche))) {
        survivors.push_back(std::move(individual));
      }
    }
    population_ = std::move(survivors);
  }

  void ProposeInitial() {
    for (const Genome& seed : problem_.seeds) {
      Propose(seed);
    }
    Genome rest;
    int64_t niches = 1;
    for (const Gene& gene : space_.genes) {
      rest.push_back(gene.role == GeneRole::kChoice ? gene.least : gene.rest);
      niches = gene.role == GeneRole::kChoice ? SaturatingProduct(niches, gene.choices()) : niches;
    }
    for (int64_t niche = 0; niches <= kMaxNiches && niche < niches; ++niche) {
      int64_t index = niche;
      for (size_t gene = choices_; gene-- > 0; index /= space_.genes[gene].choices()) {
        rest[gene] = space_.genes[gene].least + static_cast<int32_t>(index % space_.genes[gene].choices());
      }
      Propose(rest);
      Genome full = rest;
      for (size_t gene = choices_; gene < full.size(); ++gene) {
        full[gene] = space_.genes[gene].role == GeneRole::kOrdinal ? space_.genes[gene].greatest : full[gene];
      }
      Propose(std::move(full));
    }
    for (int32_t i = 0; i < options_.offspring; ++i) {
      Propose(RandomGenome(rest));
    }
  }

  Genome RandomGenome(Genome genome) {
    for (size_t gene = 0; gene < genome.size(); ++gene) {
      if (space_.genes[gene].role != GeneRole::kShare) {
        genome[gene] = static_cast<int32_t>(prng_.Between(space_.genes[gene].least, space_.genes[gene].greatest));
      }
    }
    for (const ShareGroup& group : space_.groups) {
      for (int32_t i = 0; i < group.count; ++i) {
        MoveShare(group, genome);
      }
    }
    return genome;
  }

  // Moves one share between two random genes, if the draw allows it.
  void MoveShare(const ShareGroup& group, Genome& genome) {
    const auto to = static_cast<size_t>(group.first) + prng_.Below(group.count);
    const auto from = static_cast<size_t>(group.first) + prng_.Below(group.count);
    if (to != from && genome[to] < space_.genes[to].greatest && genome[from] > space_.genes[from].least) {
      ++genome[to];
      --genome[from];
    }
  }

  // Proposes neighbours: every ordinal gene one step away, two of them together, one share moved.
  void ProposeNeighbours(const Genome& genome) {
    const std::vector<int32_t> ordinal = OrdinalGenes(space_, genome);
    const std::vector<Move> steps = OrdinalSteps(ordinal);
    for (size_t i = 0; i < steps.size(); ++i) {
      Genome near = genome;
      steps[i].Apply(near);
      Propose(near);
      for (size_t j = (i / 2 + 1) * 2; j < steps.size(); ++j) {
        if (ordinal.size() > kFewOrdinals && j / 2 - i / 2 > kCloseOrdinals) {
          break;
        }
        Genome pair = near;
        steps[j].Apply(pair);
        Propose(std::move(pair));
      }
    }
    for (const Move& move : ShareMoves(space_, genome, prng_)) {
      Genome near = genome;
      move.Apply(near);
      Propose(std::move(near));
    }
  }

  // Proposes the neighbours of the best of all and of the best of the next niches, once each. False when nothing was
  // left to refine.
  bool ProposeRefinements() {
    std::set<Genome> niches;
    int32_t refined = 0;
    for (size_t i = 0; i < population_.size() && refined < kRefinedNiches; ++i) {
      const Genome genome = population_[i].genome;
      if (niches.insert(NicheOf(genome)).second && refined_.insert(genome).second) {
        ProposeNeighbours(genome);
        ++refined;
      }
    }
    return refined > 0;
  }

  bool ProposeScan() {
    const Genome best = population_.front().genome;
    if (!scanned_.insert(best).second) {
      return false;
    }
    for (Genome& genome : Scan(space_, best, prng_)) {
      Propose(std::move(genome));
    }
    return true;
  }

  const Genome& Tournament() {
    const uint64_t a = prng_.Below(population_.size());
    const uint64_t b = prng_.Below(population_.size());
    return population_[std::min(a, b)].genome;  // sorted: the lower index is preferred
  }

  void ProposeOffspring() {
    for (int32_t i = 0; i < options_.offspring; ++i) {
      Genome child = Tournament();
      const Genome& other = Tournament();
      for (size_t gene = choices_; gene < child.size(); ++gene) {
        if (space_.genes[gene].role == GeneRole::kOrdinal && prng_.Chance(1, 2)) {
          child[gene] = other[gene];
        }
      }
      for (const ShareGroup& group : space_.groups) {
        if (prng_.Chance(1, 2)) {
          std::copy_n(other.begin() + group.first, group.count, child.begin() + group.first);
        }
      }
      Mutate(child);
      Propose(std::move(child));
    }
  }

  void Mutate(Genome& genome) {
    const uint64_t ordinals = std::max<uint64_t>(1, OrdinalGenes(space_, genome).size());
    for (size_t gene = choices_; gene < genome.size(); ++gene) {
      const Gene& description = space_.genes[gene];
      if (description.role == GeneRole::kOrdinal && prng_.Chance(1, ordinals)) {
        const int32_t step = GeometricStep(description.greatest - description.least, prng_);
        genome[gene] += prng_.Chance(1, 2) ? step : -step;
      }
    }
    for (const ShareGroup& group : space_.groups) {
      for (int32_t moves = prng_.Chance(1, 2) ? GeometricStep(group.count, prng_) : 0; moves > 0; --moves) {
        MoveShare(group, genome);
      }
    }
    const uint64_t choice = prng_.Below(2 * choices_);
    if (choice < choices_) {
      const Gene& gene = space_.genes[choice];
      genome[choice] = static_cast<int32_t>(prng_.Between(gene.least, gene.greatest));
    }
  }

  const SearchProblem& problem_;
  const GenomeSpace& space_;
  const GeneticOptions& options_;
  const Preference preferred_;
  const size_t choices_;
  const int64_t size_;
  Prng prng_;
  std::map<Genome, Fitness> known_;
  std::vector<Evaluated> population_;  // most preferred first
  std::vector<Proposal> proposals_;
  std::set<Genome> proposed_;
  int64_t proposed_count_ = 0;
  std::set<Genome> refined_;
  std::set<Genome> scanned_;
  std::map<Genome, int64_t> niche_bound_ns_;
  SearchOutcome outcome_;
};

}  // namespace

SearchOutcome GeneticSearch(const SearchProblem& problem, const GeneticOptions& options) {
  return Genetic(problem, options).Run();
}

}  // namespace geopipe
