// Random numbers by the hundred million.
#pragma once

#include <cstdint>

namespace geopipe {

// A sequence of numbers from a seed (Vigna's splitmix64), quick to begin.
class QuickNumbers {
 public:
  explicit QuickNumbers(uint64_t seed) : state_(seed) {}

  // A sum of four uniform numbers, of deviation 1.
  float Normal() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    constexpr uint64_t kPart = 0xFFFF;
    const auto sum = static_cast<float>((z & kPart) + ((z >> 16) & kPart) + ((z >> 32) & kPart) + (z >> 48));
    constexpr float kMean = 2 * 65535.0F;
    constexpr float kDeviation = 65536 * 0.57735027F;  // sqrt(4 / 12)
    return (sum - kMean) / kDeviation;
  }

 private:
  uint64_t state_;
};

}  // namespace geopipe
