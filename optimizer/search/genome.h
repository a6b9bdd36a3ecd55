// What the search varies, and the order in which it prefers one candidate to another.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <vector>

namespace geopipe {

// Indices into the choices of a GenomeSpace and one ΔN per crossing boundary, ascending.
struct Genome {
  int32_t kind = 0;         // schedule kind
  int32_t micro_batch = 0;  // micro-batch size
  int32_t sequence = 0;     // sequence length
  std::vector<int32_t> delta_n;

  friend bool operator==(const Genome&, const Genome&) = default;
  friend bool operator<(const Genome& a, const Genome& b) {
    return std::tie(a.kind, a.micro_batch, a.sequence, a.delta_n) <
           std::tie(b.kind, b.micro_batch, b.sequence, b.delta_n);
  }
};

struct GenomeSpace {
  std::vector<bool> kind_uses_delta_n;  // one per schedule kind; a kind that does not has ΔN = 0 everywhere
  int32_t micro_batch_choices = 1;
  int32_t sequence_choices = 1;
  int32_t crossings = 0;
  int32_t max_delta_n = 0;

  // Number of distinct genomes; INT64_MAX when there are more.
  int64_t size() const;
  bool Contains(const Genome& genome) const;
};

struct Fitness {
  bool feasible = false;
  int64_t iteration_ns = 0;  // when feasible
  int64_t excess = 0;        // when not: how far from feasible, e.g. bytes above capacity

  friend bool operator==(const Fitness&, const Fitness&) = default;
};

struct Evaluated {
  Genome genome;
  Fitness fitness;

  friend bool operator==(const Evaluated&, const Evaluated&) = default;
};

// The one preference order of all searches, strict and total over distinct genomes, so that two searches that both
// reach the optimum return the same genome: feasible before infeasible; then the shorter iteration (the smaller
// excess); then the smaller sum of ΔN, which holds less memory; then lexicographic by kind, micro-batch, sequence, ΔN.
bool Preferred(const Evaluated& a, const Evaluated& b);

// A search problem. All functions are pure; `evaluate` may work in parallel and returns one fitness per genome, in
// order.
struct SearchProblem {
  GenomeSpace space;
  std::function<std::vector<Fitness>(std::span<const Genome>)> evaluate;

  // Optional: no genome of this kind, micro-batch and sequence has a smaller iteration_ns, whatever its ΔN. Genomes
  // that the bound rules out are not evaluated.
  std::function<int64_t(const Genome&)> lower_bound_ns;

  // Optional: changes an infeasible genome into a near feasible one where there is one.
  std::function<void(Genome&)> repair;

  // Where to start, for example ΔN_k = ceil(2 D_k / t).
  std::vector<Genome> seeds;
};

struct SearchOutcome {
  std::vector<Evaluated> evaluated;     // everything evaluated, most preferred first; empty only if nothing was allowed
  int64_t evaluations = 0;              // distinct genomes evaluated
  std::vector<int64_t> best_so_far_ns;  // after each generation; only those with a feasible best
  bool stopped_early = false;           // should_stop said so
};

}  // namespace geopipe
