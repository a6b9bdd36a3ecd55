#include "runtime/data/samples/sample_order.h"

#include <bit>

#include "optimizer/base/check.h"
#include "optimizer/base/splitmix64.h"

namespace geopipe {

SeededPermutation::SeededPermutation(uint64_t seed, uint64_t stream, int64_t size)
    : size_(static_cast<uint64_t>(size)),
      // bit_width(size - 1) bits hold every index; both halves get as many, rounded up, and at least one.
      half_bits_(size <= 2 ? 1 : (std::bit_width(static_cast<uint64_t>(size) - 1) + 1) / 2) {
  GP_CHECK(size >= 1, "permutation of {}", size);
  SplitMix64 keys(SplitMix64(seed).Next() ^ stream);
  for (uint64_t& key : keys_) {
    key = keys.Next();
  }
}

int64_t SeededPermutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  GP_CHECK(value < size_, "index {} of {}", index, size_);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (SplitMix64::Mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

SampleOrder::SampleOrder(uint64_t seed, bool shuffle, int64_t windows, int64_t samples_per_iteration, uint64_t file)
    : seed_(seed), shuffle_(shuffle), windows_(windows), samples_per_iteration_(samples_per_iteration), file_(file) {
  GP_CHECK(windows >= 1 && samples_per_iteration >= 1, "{} windows, {} samples", windows, samples_per_iteration);
}

int64_t SampleOrder::At(int64_t position) const {
  const int64_t within = position % windows_;
  const uint64_t stream = (file_ << 32) + static_cast<uint64_t>(position / windows_);
  return shuffle_ ? SeededPermutation(seed_, stream, windows_)(within) : within;
}

int64_t SampleOrder::Window(int64_t iteration, int64_t sample) const {
  GP_CHECK(iteration >= 0 && sample >= 0 && sample < samples_per_iteration_, "sample {} of iteration {}", sample,
           iteration);
  return At(iteration * samples_per_iteration_ + sample);
}

}  // namespace geopipe
