// Seeds of randomised tests: fixed by default, from GEOPIPE_TEST_SEED when set. Print what you used:
//   const uint64_t seed = TestSeed(); INFO("GEOPIPE_TEST_SEED=" << seed);
#pragma once

#include <cstdint>
#include <cstdlib>

namespace geopipe {

inline uint64_t TestSeed(uint64_t default_seed = 20251012) {
  const char* text = std::getenv("GEOPIPE_TEST_SEED");
  return text == nullptr ? default_seed : std::strtoull(text, nullptr, 10);
}

// Number of seeds that a test tries of a seeded device: a few by default, as many as GEOPIPE_TEST_SEEDS says when set.
inline int TestSeeds(int by_default = 20) {
  const char* text = std::getenv("GEOPIPE_TEST_SEEDS");
  return text == nullptr ? by_default : std::atoi(text);
}

}  // namespace geopipe
