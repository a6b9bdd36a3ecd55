// Decides which of several files each sample comes from, by their weights: a pure function of the sample's number.
//
// File f of weight w gives of the first j samples ⌊j' · w / r⌋, where j' of the j samples are left by the files before
// it, and r is the sum of its own and the later weights. So counts are exact after every `period` samples, and in
// between off by less than the number of files: every iteration has the mix that was asked for, where files drawn at
// random would give one that varies. Only the order within a file is drawn (SampleOrder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace geopipe {

class SampleMix {
 public:
  // Weights count in millionths (kDataWeightUnit). REQUIRES: at least one; each makes at least one millionth.
  explicit SampleMix(std::span<const double> weights);

  struct Place {
    size_t file = 0;
    int64_t index = 0;  // of the sample among those of the file

    friend bool operator==(const Place&, const Place&) = default;
  };

  // REQUIRES: position >= 0.
  Place At(int64_t position) const;
  // Samples of a file among the first `count`.
  int64_t Count(size_t file, int64_t count) const;
  // Fewest samples that are divided exactly.
  int64_t period() const;

 private:
  std::vector<int64_t> weights_;
  int64_t sum_ = 0;
};

}  // namespace geopipe
