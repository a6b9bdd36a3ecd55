// Exhaustive search: proves the optimum.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <limits>

#include "optimizer/search/genome.h"

namespace geopipe {

struct ExhaustiveOptions {
  int64_t max_evaluations = 1'000'000;
  // Size up to which a space is evaluated completely, without relying on bounds.
  int64_t whole_space_up_to = 1 << 16;
  // Iteration time to beat: branch and bound leaves out genomes whose bound is no less.
  int64_t beat_ns = std::numeric_limits<int64_t>::max();
  std::function<bool()> should_stop = {};  // asked between batches; empty: never stops
};

// Finds the optimum: evaluates every genome of a small space; of a larger one (branch and bound) every genome that
// problem.lower_bound_ns, asked for ever longer prefixes, does not rule out. So evaluated[0] is the optimum of the
// whole space, or no genome beats beat_ns, unless stopped early. Seeds, repaired, are the first incumbents of branch
// and bound; small spaces do not use them. InvalidArgument when that takes more than max_evaluations: names both
// numbers and the remedy. REQUIRES: the first gene is a choice.
absl::StatusOr<SearchOutcome> ExhaustiveSearch(const SearchProblem& problem, const ExhaustiveOptions& options = {});

}  // namespace geopipe
