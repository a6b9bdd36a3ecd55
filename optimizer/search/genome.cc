#include "optimizer/search/genome.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace geopipe {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

int64_t SaturatingProduct(int64_t a, int64_t b) { return b != 0 && a > kMax / b ? kMax : a * b; }

int64_t SaturatingSum(int64_t a, int64_t b) { return a > kMax - b ? kMax : a + b; }

int64_t DeltaNSum(const Genome& genome) {
  return std::accumulate(genome.delta_n.begin(), genome.delta_n.end(), int64_t{0});
}

}  // namespace

int64_t GenomeSpace::size() const {
  int64_t delta_n_choices = 1;
  for (int32_t crossing = 0; crossing < crossings; ++crossing) {
    delta_n_choices = SaturatingProduct(delta_n_choices, int64_t{max_delta_n} + 1);
  }
  int64_t kinds = 0;
  for (const bool uses_delta_n : kind_uses_delta_n) {
    kinds = SaturatingSum(kinds, uses_delta_n ? delta_n_choices : 1);
  }
  return SaturatingProduct(kinds, int64_t{micro_batch_choices} * sequence_choices);
}

bool GenomeSpace::Contains(const Genome& genome) const {
  const auto within = [](int32_t index, size_t choices) { return index >= 0 && static_cast<size_t>(index) < choices; };
  if (!within(genome.kind, kind_uses_delta_n.size()) || !within(genome.micro_batch, micro_batch_choices) ||
      !within(genome.sequence, sequence_choices) || genome.delta_n.size() != static_cast<size_t>(crossings)) {
    return false;
  }
  const int32_t greatest = kind_uses_delta_n[genome.kind] ? max_delta_n : 0;
  return std::all_of(genome.delta_n.begin(), genome.delta_n.end(),
                     [greatest](int32_t delta_n) { return delta_n >= 0 && delta_n <= greatest; });
}

bool Preferred(const Evaluated& a, const Evaluated& b) {
  if (a.fitness.feasible != b.fitness.feasible) {
    return a.fitness.feasible;
  }
  if (a.fitness.feasible && a.fitness.iteration_ns != b.fitness.iteration_ns) {
    return a.fitness.iteration_ns < b.fitness.iteration_ns;
  }
  if (!a.fitness.feasible && a.fitness.excess != b.fitness.excess) {
    return a.fitness.excess < b.fitness.excess;
  }
  const int64_t sum_a = DeltaNSum(a.genome);
  const int64_t sum_b = DeltaNSum(b.genome);
  return sum_a != sum_b ? sum_a < sum_b : a.genome < b.genome;
}

}  // namespace geopipe
