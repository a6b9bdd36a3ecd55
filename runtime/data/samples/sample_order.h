// Decides which window of the data each sample of each iteration reads: a pure function of (seed, iteration, sample
// index). It knows nothing of micro-batches, stages or sites, so no plan changes it, and a job that is resumed or
// re-planned at any iteration neither skips nor repeats a sample.
#pragma once

#include <cstdint>

namespace geopipe {

// A bijection of [0, size): a balanced Feistel network of eight rounds over the next even number of bits, walked until
// it lands inside [0, size) again ("cycle walking", Black and Rogaway 2002; at most four steps on average). The round
// function is the finalizer of SplitMix64 of half ^ key(round), cut to the half's bits; key(round) is output number
// `round` of SplitMix64 that begins at (first output of SplitMix64 that begins at seed) ^ stream.
// Nothing here depends on the platform.
class SeededPermutation {
 public:
  // REQUIRES: size >= 1. Different streams of one seed are independent permutations.
  SeededPermutation(uint64_t seed, uint64_t stream, int64_t size);

  // REQUIRES: 0 <= index < size.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t size_;
  int half_bits_;
  uint64_t keys_[kRounds];
};

class SampleOrder {
 public:
  // `windows` in the data, `samples_per_iteration` (n) read by each iteration; both at least 1. `file`: number of the
  // file, below 2^31, where each has an order of its own.
  SampleOrder(uint64_t seed, bool shuffle, int64_t windows, int64_t samples_per_iteration, uint64_t file = 0);

  // Window at position j of the endless order, in epoch e = j / windows: permutation(seed, file * 2^32 + e)(j mod
  // windows), or j mod windows without shuffling.
  int64_t At(int64_t position) const;
  // Window of sample k of an iteration, which is at position i*n + k.
  // REQUIRES: iteration >= 0, 0 <= sample < samples_per_iteration.
  int64_t Window(int64_t iteration, int64_t sample) const;

 private:
  uint64_t seed_;
  bool shuffle_;
  int64_t windows_;
  int64_t samples_per_iteration_;
  uint64_t file_;
};

}  // namespace geopipe
