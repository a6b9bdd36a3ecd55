// Genetic search with local refinement (a memetic algorithm: Moscato, 1989): a steady population, crossover and
// mutation explore; around the best individuals every close genome is tried, because the iteration time has plateaus
// along single genes that only a change of two crosses. If the problem has a lower bound, candidates are tried in its
// order, and those that it rules out, which is most of them, are not tried at all.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "optimizer/search/genome.h"

namespace geopipe {

struct GeneticOptions {
  uint64_t seed = 1;
  int64_t max_evaluations = 4096;
  int32_t population = 32;  // at least 4
  int32_t offspring = 8;    // per generation, besides refinement
  int32_t batch = 16;       // genomes given to `evaluate` at once; their results rule out some of the next
  int32_t patience = 12;    // generations without improvement, with nothing left to refine, before it ends
  int64_t beat_ns = std::numeric_limits<int64_t>::max();  // genomes whose bound is no less are not evaluated
  std::function<bool()> should_stop = {};                 // asked between batches, and in long ones; empty: never
};

// Searches. Deterministic in (problem, options) while should_stop returns false, however `evaluate` divides its work.
// Each distinct genome is evaluated once; at most max_evaluations are. Returns before the budget is spent when
// `patience` runs out. REQUIRES: the first gene is a choice.
//
// Generation 0: the seeds, of every niche (combination of choices) the genome at rest and the one with the greatest
// ordinal genes, random genomes.
// A generation:
//   refinement  the most preferred individuals that were not yet refined (one overall and one of each of the next best
//               niches): all genomes with one or two ordinal genes one step away, or one share moved between two genes;
//   offspring   tournament of two, uniform crossover, mutation by a geometric step, a moved share or another choice;
//   survival    the most preferred; elitist, and each niche that its lower bound leaves in the race keeps its best.
// When nothing is left to refine, the best individual is scanned, once: every other choice, along every ordinal gene
// over its whole range, with up to four moved from one ordinal gene to another, and with two moves of shares or one
// beside a step of an ordinal gene, because equal times nearer to rest lie there.
// Every candidate is repaired first.
SearchOutcome GeneticSearch(const SearchProblem& problem, const GeneticOptions& options = {});

}  // namespace geopipe
