#include "optimizer/search/prng.h"

#include <bit>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe {
namespace {

// The 128-bit product of two 64-bit numbers, from 32-bit halves (ISO C++ has no 128-bit integer).
struct Product {
  uint64_t high = 0;
  uint64_t low = 0;
};

Product Multiply(uint64_t a, uint64_t b) {
  constexpr uint64_t kMask = 0xffffffff;
  const uint64_t low_low = (a & kMask) * (b & kMask);
  const uint64_t high_low = (a >> 32) * (b & kMask);
  const uint64_t low_high = (a & kMask) * (b >> 32);
  const uint64_t high_high = (a >> 32) * (b >> 32);
  const uint64_t middle = (low_low >> 32) + (high_low & kMask) + (low_high & kMask);
  return {.high = high_high + (high_low >> 32) + (low_high >> 32) + (middle >> 32), .low = a * b};
}

}  // namespace

Prng::Prng(uint64_t seed) : seed_(seed), state_() {
  SplitMix64 words(seed);
  for (uint64_t& word : state_) {
    word = words.Next();
  }
}

uint64_t Prng::Next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Prng::Below(uint64_t bound) {
  GP_CHECK(bound > 0);
  Product product = Multiply(Next(), bound);
  if (product.low < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (product.low < threshold) {
      product = Multiply(Next(), bound);
    }
  }
  return product.high;
}

int64_t Prng::Between(int64_t low, int64_t high) {
  GP_CHECK(low <= high);
  return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
}

bool Prng::Chance(uint64_t numerator, uint64_t denominator) {
  GP_CHECK(numerator <= denominator);
  return Below(denominator) < numerator;
}

Prng Prng::Split(uint64_t stream) const {
  return Prng(SplitMix64(seed_).Next() ^ std::rotl(SplitMix64(stream).Next(), 1));
}

}  // namespace geopipe
