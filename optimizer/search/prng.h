// The search's random numbers: xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators",
// ACM TOMS 2021), its state filled by SplitMix64. The sequence is a pure function
// of the seed, on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace geopipe {

class Prng {
 public:
  explicit Prng(uint64_t seed);

  // Uniform over all 64-bit values.
  uint64_t Next();

  // Uniform over [0, bound), without bias (Lemire, ACM TOMACS 2019). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound);

  // Uniform over [low, high]. REQUIRES: low <= high.
  int64_t Between(int64_t low, int64_t high);

  // True with probability numerator / denominator. REQUIRES: 0 <= numerator <= denominator, denominator > 0.
  bool Chance(uint64_t numerator, uint64_t denominator);

  // An independent generator for a numbered sub-task: depends on this generator's seed and `stream` alone, not on the
  // numbers drawn so far.
  Prng Split(uint64_t stream) const;

 private:
  uint64_t seed_;
  std::array<uint64_t, 4> state_;
};

}  // namespace geopipe
