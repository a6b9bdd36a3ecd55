#include "optimizer/search/exhaustive_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr size_t kBatch = 256;
// Prefixes looked at for each evaluation that is allowed.
constexpr int64_t kVisitsPerEvaluation = 64;
constexpr int64_t kVisitsBetweenStops = 4096;

// All genomes that share their choices.
struct Niche {
  int64_t lower_bound_ns = 0;
  Genome choices;
};

class Enumeration {
 public:
  Enumeration(const SearchProblem& problem, const ExhaustiveOptions& options)
      : problem_(problem),
        space_(problem.space),
        options_(options),
        preferred_(problem.space),
        choices_(static_cast<size_t>(problem.space.choice_genes())),
        bounded_(problem.lower_bound_ns && problem.space.size() > options.whole_space_up_to) {
    GP_CHECK(choices_ >= 1, "the first gene must be a choice");
  }

  absl::StatusOr<SearchOutcome> Run() {
    if (bounded_) {
      for (Genome seed : problem_.seeds) {
        space_.MakeCanonical(seed);
        if (problem_.repair) {
          problem_.repair(seed);
        }
        Take(seed);
      }
      Flush();
    }
    for (const Niche& niche : NichesByBound()) {
      if (niche.lower_bound_ns == std::numeric_limits<int64_t>::max()) {
        break;  // the bound rules out this one and those that follow
      }
      genome_ = niche.choices;
      genome_.resize(space_.genes.size());
      Extend(choices_);
      Flush();
      if (Ended()) {
        break;
      }
    }
    if (too_many_) {
      return absl::InvalidArgumentError(fmt::format(
          "the search space has {} candidates, more than exhaustive search takes ({}); use --search genetic "
          "or lower search.max_delta_n",
          space_.size(), options_.max_evaluations));
    }
    outcome_.evaluations = static_cast<int64_t>(outcome_.evaluated.size());
    std::sort(outcome_.evaluated.begin(), outcome_.evaluated.end(), preferred_);
    return std::move(outcome_);
  }

 private:
  bool Ended() const { return too_many_ || outcome_.stopped_early; }

  std::vector<Niche> NichesByBound() {
    std::vector<Niche> niches;
    Genome choices;
    for (size_t gene = 0; gene < choices_; ++gene) {
      choices.push_back(space_.genes[gene].least);
    }
    while (true) {
      niches.push_back({bounded_ ? problem_.lower_bound_ns(choices) : 0, choices});
      size_t gene = choices_;
      while (gene > 0 && choices[gene - 1] == space_.genes[gene - 1].greatest) {
        --gene;
        choices[gene] = space_.genes[gene].least;
      }
      if (gene == 0) {
        break;
      }
      ++choices[gene - 1];
    }
    std::stable_sort(niches.begin(), niches.end(),
                     [](const Niche& a, const Niche& b) { return a.lower_bound_ns < b.lower_bound_ns; });
    return niches;
  }

  // True when the bound does not rule out every genome that begins with the first `length` genes.
  bool InTheRace(size_t length) {
    if (!bounded_) {
      return true;
    }
    ++visits_;
    too_many_ = too_many_ || visits_ / kVisitsPerEvaluation > options_.max_evaluations;
    if (visits_ % kVisitsBetweenStops == 0 && options_.should_stop && options_.should_stop()) {
      outcome_.stopped_early = true;
    }
    if (Ended()) {
      return false;
    }
    const int64_t bound_ns = problem_.lower_bound_ns(std::span(genome_).first(length));
    if (bound_ns >= options_.beat_ns) {
      return false;
    }
    if (!best_.has_value() || !best_->fitness.feasible) {
      return true;
    }
    return length < genome_.size() ? bound_ns <= best_->fitness.iteration_ns
                                   : preferred_.MayBeat(genome_, bound_ns, *best_);
  }

  // The values of gene `index`, one of a group, with which the genes after it can make up the sum.
  std::pair<int32_t, int32_t> ShareRange(size_t index) const {
    const auto group = std::find_if(space_.groups.begin(), space_.groups.end(), [index](const ShareGroup& g) {
      return index >= static_cast<size_t>(g.first) && index < static_cast<size_t>(g.first) + g.count;
    });
    GP_CHECK(group != space_.groups.end());
    int64_t left = group->sum;
    for (auto gene = static_cast<size_t>(group->first); gene < index; ++gene) {
      left -= genome_[gene];
    }
    int64_t least_after = 0;
    int64_t greatest_after = 0;
    for (size_t gene = index + 1; gene < static_cast<size_t>(group->first) + group->count; ++gene) {
      least_after += space_.genes[gene].least;
      greatest_after += space_.genes[gene].greatest;
    }
    const int64_t low = std::max<int64_t>(space_.genes[index].least, left - greatest_after);
    const int64_t high = std::min<int64_t>(space_.genes[index].greatest, left - least_after);
    return {static_cast<int32_t>(low), static_cast<int32_t>(high)};
  }

  // Tries all values of the genes from `index` on.
  void Extend(size_t index) {
    const bool worth_a_bound =
        index == choices_ || index == genome_.size() || space_.genes[index - 1].role == GeneRole::kShare;
    if (Ended() || (worth_a_bound && !InTheRace(index))) {
      return;
    }
    if (index == genome_.size()) {
      Take(genome_);
      return;
    }
    const Gene& gene = space_.genes[index];
    std::pair<int32_t, int32_t> range{gene.least, gene.greatest};
    if (gene.role == GeneRole::kShare) {
      range = ShareRange(index);
    } else if (!space_.Active(genome_, index)) {
      range = {gene.rest, gene.rest};
    }
    for (int32_t value = range.first; value <= range.second; ++value) {
      genome_[index] = value;
      Extend(index + 1);
    }
  }

  void Take(const Genome& genome) {
    if (bounded_ && !seen_.insert(genome).second) {
      return;
    }
    batch_.push_back(genome);
    if (batch_.size() == kBatch) {
      Flush();
    }
  }

  void Flush() {
    if (batch_.empty()) {
      return;
    }
    const std::vector<Fitness> fitness = problem_.evaluate(batch_);
    GP_CHECK(fitness.size() == batch_.size());
    for (size_t i = 0; i < batch_.size(); ++i) {
      outcome_.evaluated.push_back({std::move(batch_[i]), fitness[i]});
      if (!best_.has_value() || preferred_(outcome_.evaluated.back(), *best_)) {
        best_ = outcome_.evaluated.back();
      }
    }
    batch_.clear();
    if (best_->fitness.feasible) {
      outcome_.best_so_far_ns.push_back(best_->fitness.iteration_ns);
    }
    too_many_ = too_many_ || std::ssize(outcome_.evaluated) > options_.max_evaluations;
    outcome_.stopped_early = outcome_.stopped_early || (options_.should_stop && options_.should_stop());
  }

  const SearchProblem& problem_;
  const GenomeSpace& space_;
  const ExhaustiveOptions& options_;
  const Preference preferred_;
  const size_t choices_;
  const bool bounded_;
  Genome genome_;
  std::vector<Genome> batch_;
  std::set<Genome> seen_;
  std::optional<Evaluated> best_;
  int64_t visits_ = 0;
  bool too_many_ = false;
  SearchOutcome outcome_;
};

}  // namespace

absl::StatusOr<SearchOutcome> ExhaustiveSearch(const SearchProblem& problem, const ExhaustiveOptions& options) {
  const int64_t size = problem.space.size();
  if (size > options.max_evaluations && !problem.lower_bound_ns) {
    return absl::InvalidArgumentError(
        fmt::format("the search space has {} candidates, more than exhaustive search takes ({}); use --search genetic "
                    "or lower search.max_delta_n",
                    size, options.max_evaluations));
  }
  return Enumeration(problem, options).Run();
}

}  // namespace geopipe
