// Random initial weights: a pure function of (seed, HF name), whatever the split of the model over stages.
//
// Norm weights (one dimension) are 1. Every other element is normal(0, 0.02): element i of the tensor called `name` is
// number i mod 4 of the block i / 4, where a block is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011) with the seed as key (low word first) and the counter {block low, block high, hash low, hash
// high}, the hash being FNV-1a (64 bits) of the name. Words 0 and 1 give numbers 0 and 1, words 2 and 3 numbers 2 and
// 3, by Box and Muller: with u = (w0 + 1) / 2^32 and a = w1 / 2^32 they are sqrt(-2 ln u) cos(2 pi a) and … sin(2 pi
// a). ln, sin and cos are computed here from fp64 additions, products, quotients and square roots alone, so the weights
// are the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/model/weight_source.h"

namespace geopipe {

// The ten-round Philox4x32 block function.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(uint64_t seed) : seed_(seed) {}

  // Never fails.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

 private:
  uint64_t seed_;
};

}  // namespace geopipe
