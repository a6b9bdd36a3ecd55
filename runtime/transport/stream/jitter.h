// Seeded jitter of timers (SplitMix64, Steele et al., OOPSLA 2014): retries of many workers must not march in step.
#pragma once

#include <cstdint>

namespace geopipe {

class Jitter {
 public:
  explicit Jitter(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // `interval_ns` lengthened by up to a quarter.
  int64_t Lengthen(int64_t interval_ns) {
    return interval_ns + static_cast<int64_t>(static_cast<double>(interval_ns) * 0.25 * Uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace geopipe
