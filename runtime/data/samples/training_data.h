// The samples of a job in the order in which it is trained on them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "runtime/data/corpus.h"
#include "runtime/data/samples/sample_mix.h"
#include "runtime/data/samples/sample_order.h"
#include "runtime/model/token_source.h"

namespace geopipe {

// The part of a job's data that one worker reads. A sample is one window of s + 1 tokens: inputs the first s, targets
// the last s; window j begins at token j * s, so that a window's last target is the next window's first input. With
// data.weights each file has windows and an order of its own, and a SampleMix says whose turn it is.
class TrainingData final : public TokenSource {
 public:
  // Opens the data of `job`, cut into windows of `sequence_length`. Errors: those of OpenCorpus; InvalidArgument when
  // the data holds fewer samples than one iteration takes.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Open(const JobSpec& job, int64_t sequence_length);

  // Returns the data of a corpus that is already open. REQUIRES: tokens_per_iteration is a multiple of sequence_length.
  static absl::StatusOr<std::unique_ptr<TrainingData>> Create(std::unique_ptr<Corpus> corpus, const JobSpec& job,
                                                              int64_t sequence_length);

  // Errors: those of Corpus::Copy.
  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override;

  const Corpus& corpus() const { return *corpus_; }
  const DataFingerprint& fingerprint() const { return corpus_->fingerprint(); }

 private:
  // The windows that are drawn from by themselves: of all files, or of one.
  struct Part {
    int64_t first_token = 0;
    SampleOrder order;
  };

  TrainingData(std::unique_ptr<Corpus> corpus, std::vector<Part> parts, std::optional<SampleMix> mix, int64_t samples,
               int64_t sequence_length)
      : corpus_(std::move(corpus)),
        parts_(std::move(parts)),
        mix_(std::move(mix)),
        samples_per_iteration_(samples),
        sequence_length_(sequence_length),
        window_(sequence_length + 1) {}

  // First token of a sample.
  int64_t Begin(int64_t iteration, int64_t sample) const;

  std::unique_ptr<Corpus> corpus_;
  std::vector<Part> parts_;
  std::optional<SampleMix> mix_;  // of the parts, where there are weights
  int64_t samples_per_iteration_;
  int64_t sequence_length_;
  std::vector<int32_t> window_;  // under way
};

}  // namespace geopipe
