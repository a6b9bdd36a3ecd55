// Exhaustive search: proves the optimum of small spaces.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>

#include "optimizer/search/genome.h"

namespace geopipe {

struct ExhaustiveOptions {
  int64_t max_evaluations = 1'000'000;
  std::function<bool()> should_stop = {};  // asked between batches; empty: never stops
};

// Evaluates every genome that problem.lower_bound_ns does not rule out, so evaluated[0] is the optimum of the whole
// space (unless stopped early). `repair` and `seeds` are not used.
// InvalidArgument when the space has more than max_evaluations genomes: names both numbers and the remedy.
absl::StatusOr<SearchOutcome> ExhaustiveSearch(const SearchProblem& problem, const ExhaustiveOptions& options = {});

}  // namespace geopipe
