#include "runtime/data/samples/sample_mix.h"

#include <cmath>
#include <numeric>

#include "optimizer/base/check.h"
#include "optimizer/model/job_spec.h"

namespace geopipe {
namespace {

// ⌊count * weight / sum⌋, whose product has up to 113 bits.
int64_t ShareOf(int64_t count, int64_t weight, int64_t sum) {
  return static_cast<int64_t>(static_cast<__int128>(count) * weight / sum);
}

}  // namespace

SampleMix::SampleMix(std::span<const double> weights) {
  GP_CHECK(!weights.empty());
  for (const double weight : weights) {
    weights_.push_back(std::llround(weight / kDataWeightUnit));
    GP_CHECK(weights_.back() > 0, "weight {}", weight);
    sum_ += weights_.back();
  }
}

SampleMix::Place SampleMix::At(int64_t position) const {
  GP_CHECK(position >= 0, "position {}", position);
  int64_t left = sum_;
  for (size_t file = 0; file + 1 < weights_.size(); ++file) {
    const int64_t before = ShareOf(position, weights_[file], left);
    if (ShareOf(position + 1, weights_[file], left) > before) {
      return {.file = file, .index = before};
    }
    position -= before;
    left -= weights_[file];
  }
  return {.file = weights_.size() - 1, .index = position};
}

int64_t SampleMix::Count(size_t file, int64_t count) const {
  int64_t left = sum_;
  for (size_t before = 0; before < file; ++before) {
    count -= ShareOf(count, weights_[before], left);
    left -= weights_[before];
  }
  return ShareOf(count, weights_[file], left);
}

int64_t SampleMix::period() const {
  return sum_ / std::accumulate(weights_.begin(), weights_.end(), int64_t{0},
                                [](int64_t a, int64_t b) { return std::gcd(a, b); });
}

}  // namespace geopipe
