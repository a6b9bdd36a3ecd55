// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): the same numbers
// from the same seed on every machine.
#pragma once

#include <cstdint>

namespace geopipe {

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}

  constexpr uint64_t Next() { return Mix(state_ += 0x9E3779B97F4A7C15); }

  // Uniform in [0, 1).
  constexpr double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // The finalizer alone: a bijection that scatters neighbouring values.
  static constexpr uint64_t Mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace geopipe
