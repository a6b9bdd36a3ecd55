#include "optimizer/search/exhaustive_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr size_t kBatch = 256;

// All genomes of one kind, micro-batch and sequence share a lower bound.
struct Niche {
  int64_t lower_bound_ns = 0;
  Genome first;  // ΔN all zero
};

std::vector<Niche> NichesByBound(const SearchProblem& problem) {
  std::vector<Niche> niches;
  const GenomeSpace& space = problem.space;
  for (int32_t kind = 0; kind < static_cast<int32_t>(space.kind_uses_delta_n.size()); ++kind) {
    for (int32_t b = 0; b < space.micro_batch_choices; ++b) {
      for (int32_t s = 0; s < space.sequence_choices; ++s) {
        Genome genome{kind, b, s, std::vector<int32_t>(space.crossings, 0)};
        const int64_t bound = problem.lower_bound_ns ? problem.lower_bound_ns(genome) : 0;
        niches.push_back({bound, std::move(genome)});
      }
    }
  }
  std::stable_sort(niches.begin(), niches.end(),
                   [](const Niche& a, const Niche& b) { return a.lower_bound_ns < b.lower_bound_ns; });
  return niches;
}

// The next ΔN in lexicographic order; false after the last.
bool Advance(const GenomeSpace& space, Genome& genome) {
  if (!space.kind_uses_delta_n[genome.kind]) {
    return false;
  }
  for (size_t crossing = genome.delta_n.size(); crossing-- > 0;) {
    if (genome.delta_n[crossing] < space.max_delta_n) {
      ++genome.delta_n[crossing];
      return true;
    }
    genome.delta_n[crossing] = 0;
  }
  return false;
}

class Enumeration {
 public:
  Enumeration(const SearchProblem& problem, const ExhaustiveOptions& options) : problem_(problem), options_(options) {}

  SearchOutcome Run() {
    for (const Niche& niche : NichesByBound(problem_)) {
      if (best_.has_value() && best_->fitness.feasible && niche.lower_bound_ns > best_->fitness.iteration_ns) {
        break;  // and so are all that follow
      }
      Genome genome = niche.first;
      bool more = true;
      while (more) {
        batch_.push_back(genome);
        more = Advance(problem_.space, genome);
        if (batch_.size() == kBatch && !Flush()) {
          return Finish();
        }
      }
      if (!Flush()) {
        return Finish();
      }
    }
    return Finish();
  }

 private:
  // False when the caller wants to stop.
  bool Flush() {
    if (batch_.empty()) {
      return true;
    }
    const std::vector<Fitness> fitness = problem_.evaluate(batch_);
    GP_CHECK(fitness.size() == batch_.size());
    for (size_t i = 0; i < batch_.size(); ++i) {
      outcome_.evaluated.push_back({std::move(batch_[i]), fitness[i]});
      if (!best_.has_value() || Preferred(outcome_.evaluated.back(), *best_)) {
        best_ = outcome_.evaluated.back();
      }
    }
    batch_.clear();
    if (best_->fitness.feasible) {
      outcome_.best_so_far_ns.push_back(best_->fitness.iteration_ns);
    }
    outcome_.stopped_early = options_.should_stop && options_.should_stop();
    return !outcome_.stopped_early;
  }

  SearchOutcome Finish() {
    outcome_.evaluations = static_cast<int64_t>(outcome_.evaluated.size());
    std::sort(outcome_.evaluated.begin(), outcome_.evaluated.end(), Preferred);
    return std::move(outcome_);
  }

  const SearchProblem& problem_;
  const ExhaustiveOptions& options_;
  std::vector<Genome> batch_;
  std::optional<Evaluated> best_;
  SearchOutcome outcome_;
};

}  // namespace

absl::StatusOr<SearchOutcome> ExhaustiveSearch(const SearchProblem& problem, const ExhaustiveOptions& options) {
  if (problem.space.size() > options.max_evaluations) {
    return absl::InvalidArgumentError(
        fmt::format("the search space has {} candidates, more than exhaustive search takes ({}); use --search genetic "
                    "or lower search.max_delta_n",
                    problem.space.size(), options.max_evaluations));
  }
  return Enumeration(problem, options).Run();
}

}  // namespace geopipe
