#include "optimizer/search/genetic_search.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/search/prng.h"

namespace geopipe {
namespace {

// How far a scan moves advance from one crossing to another.
constexpr int32_t kTransfer = 4;

using NicheKey = std::tuple<int32_t, int32_t, int32_t>;

NicheKey NicheOf(const Genome& genome) { return {genome.kind, genome.micro_batch, genome.sequence}; }

class Genetic {
 public:
  Genetic(const SearchProblem& problem, const GeneticOptions& options)
      : problem_(problem), space_(problem.space), options_(options), prng_(options.seed) {
    GP_CHECK(options.population >= 4 && options.max_evaluations >= 1);
    GP_CHECK(!space_.kind_uses_delta_n.empty() && space_.micro_batch_choices >= 1 && space_.sequence_choices >= 1);
  }

  SearchOutcome Run() {
    EvaluateInitial();
    int32_t stale = 0;
    while (stale < options_.patience && !Spent()) {
      if (options_.should_stop && options_.should_stop()) {
        outcome_.stopped_early = true;
        break;
      }
      const Genome best_before = population_.front().genome;
      const bool refined = ProposeRefinements() || ProposeScans();
      ProposeOffspring();
      Generation();
      stale = refined || population_.front().genome != best_before ? 0 : stale + 1;
    }
    for (auto& [genome, fitness] : known_) {
      outcome_.evaluated.push_back({genome, fitness});
    }
    std::sort(outcome_.evaluated.begin(), outcome_.evaluated.end(), Preferred);
    outcome_.evaluations = static_cast<int64_t>(known_.size());
    return std::move(outcome_);
  }

 private:
  bool Spent() const {
    const auto known = static_cast<int64_t>(known_.size());
    return known >= options_.max_evaluations || known >= space_.size();
  }

  bool RuledOut(const Genome& genome) const {
    return problem_.lower_bound_ns && !population_.empty() && population_.front().fitness.feasible &&
           problem_.lower_bound_ns(genome) > population_.front().fitness.iteration_ns;
  }

  // Puts a candidate into the next batch, made canonical and repaired.
  void Propose(Genome genome) {
    for (int32_t& delta_n : genome.delta_n) {
      delta_n = space_.kind_uses_delta_n[genome.kind] ? std::clamp(delta_n, 0, space_.max_delta_n) : 0;
    }
    if (problem_.repair) {
      problem_.repair(genome);
    }
    GP_CHECK(space_.Contains(genome));
    if (!known_.contains(genome) && !RuledOut(genome) && proposed_.insert(genome).second) {
      batch_.push_back(std::move(genome));
    }
  }

  // Evaluates the batch, as far as the budget goes, and lets the fittest survive.
  void Generation() {
    const int64_t left = options_.max_evaluations - static_cast<int64_t>(known_.size());
    batch_.resize(std::min<size_t>(batch_.size(), left));
    const std::vector<Fitness> fitness = batch_.empty() ? std::vector<Fitness>() : problem_.evaluate(batch_);
    GP_CHECK(fitness.size() == batch_.size());
    for (size_t i = 0; i < batch_.size(); ++i) {
      known_.emplace(batch_[i], fitness[i]);
      population_.push_back({std::move(batch_[i]), fitness[i]});
    }
    batch_.clear();
    proposed_.clear();
    Survive();
    if (population_.front().fitness.feasible) {
      outcome_.best_so_far_ns.push_back(population_.front().fitness.iteration_ns);
    }
  }

  void Survive() {
    std::sort(population_.begin(), population_.end(), Preferred);
    std::vector<Evaluated> survivors;
    std::set<NicheKey> niches;
    for (Evaluated& individual : population_) {
      const bool leads_niche = niches.insert(NicheOf(individual.genome)).second;
      const bool among_best = survivors.size() < static_cast<size_t>(options_.population);
      if (survivors.empty() || (!RuledOut(individual.genome) && (among_best || leads_niche))) {
        survivors.push_back(std::move(individual));
      }
    }
    population_ = std::move(survivors);
  }

  // Candidates with a small lower bound first, a few at a time, so that they rule out others before those are run.
  void EvaluateInitial() {
    std::vector<Genome> initial = InitialGenomes();
    if (problem_.lower_bound_ns) {
      std::stable_sort(initial.begin(), initial.end(), [this](const Genome& a, const Genome& b) {
        return problem_.lower_bound_ns(a) < problem_.lower_bound_ns(b);
      });
    }
    for (Genome& genome : initial) {
      if (Spent()) {
        return;
      }
      Propose(std::move(genome));
      if (batch_.size() >= static_cast<size_t>(options_.offspring)) {
        Generation();
      }
    }
    Generation();
  }

  std::vector<Genome> InitialGenomes() {
    std::vector<Genome> initial = problem_.seeds;
    const auto kinds = static_cast<int32_t>(space_.kind_uses_delta_n.size());
    for (int32_t kind = 0; kind < kinds; ++kind) {
      for (int32_t b = 0; b < space_.micro_batch_choices; ++b) {
        for (int32_t s = 0; s < space_.sequence_choices; ++s) {
          initial.push_back({kind, b, s, std::vector<int32_t>(space_.crossings, 0)});
          initial.push_back({kind, b, s, std::vector<int32_t>(space_.crossings, space_.max_delta_n)});
        }
      }
    }
    for (int32_t i = 0; i < options_.offspring; ++i) {
      Genome genome{
          static_cast<int32_t>(prng_.Below(kinds)), static_cast<int32_t>(prng_.Below(space_.micro_batch_choices)),
          static_cast<int32_t>(prng_.Below(space_.sequence_choices)), std::vector<int32_t>(space_.crossings, 0)};
      for (int32_t& delta_n : genome.delta_n) {
        delta_n = static_cast<int32_t>(prng_.Between(0, space_.max_delta_n));
      }
      initial.push_back(std::move(genome));
    }
    return initial;
  }

  // Every ΔN at distance one in one or two crossings.
  void ProposeNeighbours(const Genome& genome) {
    const size_t crossings = genome.delta_n.size();
    for (size_t i = 0; i < crossings; ++i) {
      for (const int32_t step_i : {-1, 1}) {
        Genome near = genome;
        near.delta_n[i] += step_i;
        Propose(near);
        for (size_t j = i + 1; j < crossings; ++j) {
          for (const int32_t step_j : {-1, 1}) {
            Genome pair = near;
            pair.delta_n[j] += step_j;
            Propose(std::move(pair));
          }
        }
      }
    }
  }

  // The best of all and the best of each niche, once each. False when there was nothing left to refine.
  bool ProposeRefinements() {
    std::set<NicheKey> niches;
    bool any = false;
    for (const Evaluated& individual : population_) {
      if (niches.insert(NicheOf(individual.genome)).second && refined_.insert(individual.genome).second) {
        ProposeNeighbours(individual.genome);
        any = true;
      }
    }
    return any;
  }

  // The best individual along every ΔN over its whole range, and with up to kTransfer moved between two, once.
  bool ProposeScans() {
    const Genome best = population_.front().genome;
    if (!scanned_.insert(best).second) {
      return false;
    }
    for (size_t crossing = 0; crossing < best.delta_n.size(); ++crossing) {
      for (int32_t delta_n = 0; delta_n <= space_.max_delta_n; ++delta_n) {
        Genome moved = best;
        moved.delta_n[crossing] = delta_n;
        Propose(std::move(moved));
      }
      for (size_t other = 0; other < best.delta_n.size(); ++other) {
        for (int32_t less = 1; other != crossing && less <= std::min(kTransfer, best.delta_n[crossing]); ++less) {
          for (int32_t more = 1; more <= kTransfer; ++more) {
            Genome moved = best;
            moved.delta_n[crossing] -= less;
            moved.delta_n[other] += more;
            Propose(std::move(moved));
          }
        }
      }
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
      for (size_t crossing = 0; crossing < child.delta_n.size(); ++crossing) {
        if (prng_.Chance(1, 2)) {
          child.delta_n[crossing] = other.delta_n[crossing];
        }
      }
      Mutate(child);
      Propose(std::move(child));
    }
  }

  void Mutate(Genome& genome) {
    const auto genes = static_cast<uint64_t>(genome.delta_n.size());
    for (int32_t& delta_n : genome.delta_n) {
      if (prng_.Chance(1, genes)) {
        int32_t step = 1;
        while (step < space_.max_delta_n && prng_.Chance(1, 2)) {
          ++step;
        }
        delta_n += prng_.Chance(1, 2) ? step : -step;
      }
    }
    const uint64_t gene = prng_.Below(8);
    if (gene == 0) {
      genome.micro_batch = static_cast<int32_t>(prng_.Below(space_.micro_batch_choices));
    } else if (gene == 1) {
      genome.sequence = static_cast<int32_t>(prng_.Below(space_.sequence_choices));
    } else if (gene == 2) {
      genome.kind = static_cast<int32_t>(prng_.Below(space_.kind_uses_delta_n.size()));
    }
  }

  const SearchProblem& problem_;
  const GenomeSpace& space_;
  const GeneticOptions& options_;
  Prng prng_;
  std::map<Genome, Fitness> known_;
  std::vector<Evaluated> population_;  // most preferred first
  std::vector<Genome> batch_;
  std::set<Genome> proposed_;
  std::set<Genome> refined_;
  std::set<Genome> scanned_;
  SearchOutcome outcome_;
};

}  // namespace

SearchOutcome GeneticSearch(const SearchProblem& problem, const GeneticOptions& options) {
  return Genetic(problem, options).Run();
}

}  // namespace geopipe
