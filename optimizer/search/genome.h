// The space that a search varies, and the order in which it prefers candidates. Nothing here knows of pipelines: a
// genome is a list of numbers, and the space says of each gene which values it takes and which of them are close.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace geopipe {

// One value per gene of a GenomeSpace.
using Genome = std::vector<int32_t>;

enum class GeneRole : uint8_t {
  kChoice,   // values without an order: each is as near as any other
  kOrdinal,  // neighbours are one apart
  kShare,    // one of a group of consecutive genes whose sum is fixed: one gains as much as another loses
};

// Bit v of `active_for`: the gene counts where gene 0 has value v; elsewhere it holds `rest`.
inline constexpr uint64_t kAlwaysActive = ~uint64_t{0};

struct Gene {
  GeneRole role = GeneRole::kChoice;
  int32_t least = 0;
  int32_t greatest = 0;                 // inclusive
  int32_t rest = 0;                     // among equals the genome nearest to rest is preferred (not for kChoice)
  uint64_t active_for = kAlwaysActive;  // of value 64 and above of gene 0: active. kChoice and kShare: always active

  bool ActiveFor(int32_t first) const { return first >= 64 || ((active_for >> first) & 1) != 0; }
  int64_t choices() const { return int64_t{greatest} - least + 1; }
};

// Consecutive kShare genes.
struct ShareGroup {
  int32_t first = 0;
  int32_t count = 0;
  int64_t sum = 0;
};

struct GenomeSpace {
  std::vector<Gene> genes;         // all kChoice genes come before all others
  std::vector<ShareGroup> groups;  // every kShare gene belongs to exactly one

  // Number of distinct genomes; INT64_MAX when there are more.
  int64_t size() const;
  bool Contains(const Genome& genome) const;
  // Leading genes of role kChoice: genomes that agree in them share a niche.
  int32_t choice_genes() const;
  bool Active(const Genome& genome, size_t gene) const { return genes[gene].ActiveFor(genome.front()); }
  // Puts inactive genes at rest and ordinal ones into their range.
  void MakeCanonical(Genome& genome) const;
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

// The one preference order of all searches, strict and total over distinct genomes of a space, so that two searches
// that both reach the optimum return the same genome: feasible before infeasible; then the shorter iteration (the
// smaller excess); then the nearer to rest (of a ΔN, 0: less memory), as the sum of distances over all genes but
// choices; then lexicographic.
class Preference {
 public:
  explicit Preference(const GenomeSpace& space) : genes_(space.genes) {}
  bool operator()(const Evaluated& a, const Evaluated& b) const;
  // True when a genome whose iteration takes at least `bound_ns` could be preferred to `best`.
  bool MayBeat(const Genome& genome, int64_t bound_ns, const Evaluated& best) const;

 private:
  int64_t DistanceFromRest(const Genome& genome) const;

  std::vector<Gene> genes_;
};

// A search problem. All functions are pure; `evaluate` may work in parallel and returns one fitness per genome, in
// order.
struct SearchProblem {
  GenomeSpace space;
  std::function<std::vector<Fitness>(std::span<const Genome>)> evaluate;

  // Optional: a lower bound on the iteration_ns of every feasible genome that begins with these genes. Asked for whole
  // genomes and for prefixes that hold all choices at least. Genomes that the bound rules out are not evaluated.
  std::function<int64_t(std::span<const int32_t>)> lower_bound_ns;

  // Optional: changes an infeasible genome into a near feasible one if there is one.
  std::function<void(Genome&)> repair;

  // Starting points, for example ΔN_k = ceil(2 D_k / t).
  std::vector<Genome> seeds;
};

struct SearchOutcome {
  std::vector<Evaluated> evaluated;     // everything evaluated, most preferred first; empty only if none was allowed
  int64_t evaluations = 0;              // distinct genomes evaluated
  std::vector<int64_t> best_so_far_ns;  // after each generation; only those with a feasible best
  bool stopped_early = false;           // should_stop said so
};

// a * b and a + b of numbers of genomes: INT64_MAX instead of an overflow. REQUIRES: not negative.
int64_t SaturatingProduct(int64_t a, int64_t b);
int64_t SaturatingSum(int64_t a, int64_t b);

}  // namespace geopipe
