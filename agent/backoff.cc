#include "agent/backoff.h"

#include <algorithm>

namespace geopipe::agent {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

Backoff::Backoff(int64_t first_ns, int64_t most_ns, uint64_t seed)
    : first_ns_(first_ns), most_ns_(most_ns), base_ns_(first_ns), state_(seed) {}

int64_t Backoff::NextDelayNs() {
  const int64_t half = base_ns_ / 2;
  const int64_t delay = half + static_cast<int64_t>(NextRandom(state_) % static_cast<uint64_t>(half + 1));
  base_ns_ = std::min(base_ns_ * 2, most_ns_);
  return delay;
}

}  // namespace geopipe::agent
