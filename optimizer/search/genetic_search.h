// Genetic search with local refinement (a memetic algorithm: Moscato, 1989): a steady population, crossover and
// mutation explore; around the best individuals every close ΔN is tried, because the iteration time has plateaus along
// single ΔN that only a change of two crosses.
#pragma once

#include <cstdint>
#include <functional>

#include "optimizer/search/genome.h"

namespace geopipe {

struct GeneticOptions {
  uint64_t seed = 1;
  int64_t max_evaluations = 4096;
  int32_t population = 32;  // at least 4
  int32_t offspring = 8;    // per generation, besides refinement
  int32_t patience = 12;    // generations without improvement, with nothing left to refine, before it ends
  std::function<bool()> should_stop = {};  // asked between generations; empty: never stops
};

// Deterministic in (problem, options) while should_stop keeps quiet. Each distinct genome is evaluated once; at most
// max_evaluations are. Returns before the budget is spent when `patience` runs out.
//
// Generation 0: the seeds, the least and the greatest ΔN of every (kind, micro-batch, sequence), random genomes;
// in order of their lower bound, so that the first rule out the rest.
// A generation:
//   refinement  the most preferred individuals that were not yet refined (one overall and one per surviving
//               (kind, micro-batch, sequence)): all ΔN at distance one in one or two crossings;
//   offspring   tournament of two, uniform crossover, mutation of ΔN by a geometric step or of another gene;
//   survival    the most preferred; elitist, and each (kind, micro-batch, sequence) that its lower bound leaves in the
//               race keeps its best.
// When nothing is left to refine, the best individual is scanned, once: along every ΔN over its whole range, and with
// up to four moved from one crossing to another, because equal times with less ΔN lie there.
// Every candidate is repaired first; genomes whose lower bound exceeds the best are dropped unevaluated.
SearchOutcome GeneticSearch(const SearchProblem& problem, const GeneticOptions& options = {});

}  // namespace geopipe
