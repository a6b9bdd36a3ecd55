#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/plan/explain.h"

namespace geopipe {
namespace {

std::string Slower(int64_t iteration_ns, int64_t best_ns, std::string_view least) {
  const double percent = 100 * (static_cast<double>(iteration_ns) / static_cast<double>(best_ns) - 1);
  return percent < 0.005 ? fmt::format("slower by {}{} ns", least, iteration_ns - best_ns)
                         : fmt::format("slower by {}{:.2f} %", least, percent);
}

std::string MemoryReason(const PlanSpace& space, const TightestStage& tightest) {
  return fmt::format("stage {} on {} needs {} of {}", tightest.stage, space.placement().stages[tightest.stage].site,
                     BytesText(tightest.need_bytes), BytesText(tightest.capacity_bytes));
}

// Why `genome` is not preferred to `best`.
std::string Reason(const PlanSpace& space, const Evaluated& best, const Genome& genome) {
  if (!space.Divides(genome.micro_batch, genome.sequence)) {
    return fmt::format("training.tokens_per_iteration {} is not a multiple of its micro-batch",
                       space.job().training.tokens_per_iteration);
  }
  const TightestStage tightest = space.Tightest(space.CandidateOf(genome));
  if (tightest.excess_bytes() > 0) {
    return MemoryReason(space, tightest);
  }
  const int64_t bound_ns = space.LowerBoundNs(genome.micro_batch, genome.sequence);
  if (bound_ns > best.fitness.iteration_ns) {
    return Slower(bound_ns, best.fitness.iteration_ns, "at least ");
  }
  const Fitness fitness = space.Evaluate(genome);
  if (fitness.iteration_ns == best.fitness.iteration_ns) {
    return "no faster, and holds more memory";
  }
  return fitness.iteration_ns < best.fitness.iteration_ns ? "faster, but the search ended before it was tried"
                                                          : Slower(fitness.iteration_ns, best.fitness.iteration_ns, "");
}

// The most preferred evaluated genome of one kind, b and s; else `fallback`, repaired.
Genome BestKnown(const PlanSpace& space, const SearchOutcome& outcome, Genome fallback) {
  for (const Evaluated& evaluated : outcome.evaluated) {
    const Genome& genome = evaluated.genome;
    if (genome.kind == fallback.kind && genome.micro_batch == fallback.micro_batch &&
        genome.sequence == fallback.sequence) {
      return genome;
    }
  }
  if (!space.genome_space().kind_uses_delta_n[fallback.kind]) {
    fallback.delta_n.assign(fallback.delta_n.size(), 0);
  }
  space.Repair(fallback);
  return fallback;
}

}  // namespace

std::vector<RejectedAlternative> NearestRejected(const PlanSpace& space, const Evaluated& best,
                                                 const SearchOutcome& outcome) {
  const GenomeSpace& genome_space = space.genome_space();
  const SearchSpec& search = space.job().search;
  std::vector<RejectedAlternative> rejected;
  const auto add = [&](std::string change, const Genome& genome) {
    rejected.push_back({std::move(change), Reason(space, best, genome)});
  };
  for (size_t crossing = 0; genome_space.kind_uses_delta_n[best.genome.kind] && crossing < best.genome.delta_n.size();
       ++crossing) {
    for (const int32_t step : {-1, 1}) {
      Genome near = best.genome;
      near.delta_n[crossing] += step;
      if (genome_space.Contains(near)) {
        add(fmt::format("delta_n {}", fmt::join(near.delta_n, ",")), near);
      }
    }
  }
  for (int32_t b = 0; b < genome_space.micro_batch_choices; ++b) {
    if (b != best.genome.micro_batch) {
      Genome other = best.genome;
      other.micro_batch = b;
      add(fmt::format("micro_batch_size {}", search.micro_batch_size[b]), BestKnown(space, outcome, other));
    }
  }
  for (int32_t s = 0; s < genome_space.sequence_choices; ++s) {
    if (s != best.genome.sequence) {
      Genome other = best.genome;
      other.sequence = s;
      add(fmt::format("sequence_length {}", search.sequence_length[s]), BestKnown(space, outcome, other));
    }
  }
  for (int32_t kind = 0; kind < static_cast<int32_t>(space.kinds().size()); ++kind) {
    if (kind != best.genome.kind) {
      Genome other = best.genome;
      other.kind = kind;
      add(fmt::format("schedule {}", ScheduleKindName(space.kinds()[kind])), BestKnown(space, outcome, other));
    }
  }
  return rejected;
}

}  // namespace geopipe
