#include "optimizer/search/prng.h"

#include <bit>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe {
namespace {

__extension__ using Wide = unsigned __int128;

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
  Wide product = Wide{Next()} * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = Wide{Next()} * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
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
