#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/space/choices.h"

namespace geopipe {
namespace {

std::string MemoryReason(const PlanSpace& space, const TightestStage& tightest) {
  return fmt::format("rank {} at {} needs {} of {}", tightest.stage, space.model().placement().SiteOf(tightest.stage),
                     HumanBytes(tightest.need_bytes), HumanBytes(tightest.capacity_bytes));
}

std::span<const int32_t> NicheOf(const Genome& genome) { return std::span(genome).first(PlanSpace::kChoices); }

// "0.62 %"; a duration where a percentage says nothing.
std::string Slowness(int64_t iteration_ns, int64_t best_ns) {
  const double percent = 100 * (static_cast<double>(iteration_ns) / static_cast<double>(best_ns) - 1);
  return percent < 0.005 ? HumanDuration(iteration_ns - best_ns) : fmt::format("{:.2f} %", percent);
}

// The reason why `genome` is not preferred to `best`; with `any`, nor any other genome with its choices.
std::string Reason(const PlanSpace& space, const Evaluated& best, const Genome& genome, bool any) {
  if (!space.model().Divides(genome[PlanSpace::kMicroBatch], genome[PlanSpace::kSequence])) {
    return fmt::format("training.tokens_per_iteration {} is not a multiple of its micro-batch",
                       space.model().job().training.tokens_per_iteration);
  }
  const TightestStage tightest = space.model().Tightest(space.CandidateOf(genome));
  if (tightest.excess_bytes() > 0) {
    return MemoryReason(space, tightest);
  }
  const Fitness fitness = space.Evaluate(genome);
  if (const int64_t bound_ns = space.LowerBoundNs(NicheOf(genome)); any && bound_ns > best.fitness.iteration_ns) {
    const std::string proved = Slower(bound_ns, best.fitness.iteration_ns, "at least ");
    const bool has_found_more = fitness.feasible && fitness.iteration_ns > bound_ns;
    return has_found_more
               ? fmt::format("{}; as found, {}", proved, Slowness(fitness.iteration_ns, best.fitness.iteration_ns))
               : proved;
  }
  if (fitness.iteration_ns == best.fitness.iteration_ns) {
    return "equally fast, more memory";
  }
  return fitness.iteration_ns < best.fitness.iteration_ns ? "faster, but the search ended before it was tried"
                                                          : Slower(fitness.iteration_ns, best.fitness.iteration_ns, "");
}

// The most preferred evaluated genome with these choices; else `fallback`, repaired as far as that keeps them.
Genome BestKnown(const PlanSpace& space, const SearchOutcome& outcome, Genome fallback) {
  for (const Evaluated& evaluated : outcome.evaluated) {
    if (std::ranges::equal(NicheOf(evaluated.genome), NicheOf(fallback))) {
      return evaluated.genome;
    }
  }
  space.genome_space().MakeCanonical(fallback);
  Genome repaired = fallback;
  space.Repair(repaired);
  return std::ranges::equal(NicheOf(repaired), NicheOf(fallback)) ? repaired : fallback;
}

// Collects alternatives with their reasons.
class Alternatives {
 public:
  Alternatives(const PlanSpace& space, const Evaluated& best, const SearchOutcome& outcome)
      : space_(space), best_(best), outcome_(outcome) {}

  void Add(std::string change, const Genome& genome, bool any = false) {
    rejected_.push_back({std::move(change), Reason(space_, best_, genome, any)});
  }

  // Adds every other value of one choice; `name` makes the text of the change from a value, empty to skip it.
  template <typename Name>
  void AddChoices(PlanSpace::Choice choice, Name name) {
    for (int32_t value = 0; value <= space_.genome_space().genes[choice].greatest; ++value) {
      const std::string change = value == best_.genome[choice] ? "" : name(value);
      if (!change.empty()) {
        Genome other = best_.genome;
        other[choice] = value;
        Add(change, BestKnown(space_, outcome_, std::move(other)), true);
      }
    }
  }

  std::vector<RejectedAlternative> Take() { return std::move(rejected_); }

 private:
  const PlanSpace& space_;
  const Evaluated& best_;
  const SearchOutcome& outcome_;
  std::vector<RejectedAlternative> rejected_;
};

}  // namespace

std::string Slower(int64_t iteration_ns, int64_t best_ns, std::string_view least) {
  return fmt::format("slower by {}{}", least, Slowness(iteration_ns, best_ns));
}

RejectedAlternative RejectedShape(const Shape& chosen, const OtherShape& other, int64_t best_ns) {
  std::vector<std::string> changes;
  if (other.shape.sites != chosen.sites) {
    changes.push_back(fmt::format("sites {}", fmt::join(other.shape.sites, ",")));
  }
  if (std::tie(other.shape.tensor, other.shape.pipeline, other.shape.data) !=
      std::tie(chosen.tensor, chosen.pipeline, chosen.data)) {
    changes.push_back(
        fmt::format("tensor {}, pipeline {}, data {}", other.shape.tensor, other.shape.pipeline, other.shape.data));
  }
  return {fmt::format("{}", fmt::join(changes, ", ")),
          other.iteration_ns == best_ns ? "no faster"
                                        : Slower(other.iteration_ns, best_ns, other.at_least ? "at least " : "")};
}

std::vector<RejectedAlternative> NearestRejected(const PlanSpace& space, const Evaluated& best,
                                                 const SearchOutcome& outcome) {
  const GenomeSpace& genome_space = space.genome_space();
  const SearchSpec& search = space.model().job().search;
  Alternatives alternatives(space, best, outcome);
  for (size_t gene = 0; gene < best.genome.size(); ++gene) {
    const bool is_delta_n = genome_space.genes[gene].role == GeneRole::kOrdinal;
    for (const int32_t step : {-1, 1}) {
      Genome near = best.genome;
      near[gene] += step;
      if (is_delta_n && genome_space.Contains(near)) {
        alternatives.Add(fmt::format("delta_n {}", fmt::join(space.CandidateOf(near).delta_n, ",")), near);
      }
    }
  }
  const std::vector<int32_t> even = space.model().EvenLayers();
  if (space.model().splits_layers() && space.CandidateOf(best.genome).layers != even) {
    Genome evenly = best.genome;
    std::copy(even.begin(), even.end(), evenly.begin() + PlanSpace::kChoices);
    alternatives.Add("layers even", evenly);
  }
  alternatives.AddChoices(PlanSpace::kMicroBatch, [&](int32_t value) {
    return fmt::format("micro_batch_size {}", search.micro_batch_size[value]);
  });
  alternatives.AddChoices(PlanSpace::kSequence, [&](int32_t value) {
    return fmt::format("sequence_length {}", search.sequence_length[value]);
  });
  const std::vector<MemoryMode>& modes = space.model().modes();
  const MemoryMode own = modes[static_cast<size_t>(best.genome[PlanSpace::kMode])];
  alternatives.AddChoices(PlanSpace::kMode, [&](int32_t value) -> std::string {
    const MemoryMode& mode = modes[static_cast<size_t>(value)];
    if (mode.zero_stage == own.zero_stage) {
      return fmt::format("recompute {}", RecomputeName(mode.recompute));
    }
    // The search covers changes of two choices at once.
    return mode.recompute == own.recompute ? fmt::format("zero_stage {}", mode.zero_stage) : "";
  });
  alternatives.AddChoices(PlanSpace::kKind, [&](int32_t value) {
    return fmt::format("schedule {}", ScheduleKindName(space.kinds()[value]));
  });
  return alternatives.Take();
}

}  // namespace geopipe
