#include "runtime/data/samples/training_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const JobSpec& job, int64_t sequence_length) {
  GP_ASSIGN_OR_RETURN(std::unique_ptr<Corpus> corpus, OpenCorpus(job.data, job.model.vocab_size));
  return Create(std::move(corpus), job, sequence_length);
}

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Create(std::unique_ptr<Corpus> corpus, const JobSpec& job,
                                                                   int64_t sequence_length) {
  GP_CHECK(sequence_length >= 1 && job.training.tokens_per_iteration % sequence_length == 0, "{} tokens, s = {}",
           job.training.tokens_per_iteration, sequence_length);
  const int64_t windows = (corpus->tokens() - 1) / sequence_length;
  if (windows < 1) {
    return absl::InvalidArgumentError(
        fmt::format("{}: data.path holds {} tokens, fewer than one sample of {}; name more data, or a shorter "
                    "search.sequence_length",
                    job.data.paths.front(), corpus->tokens(), sequence_length + 1));
  }
  const int64_t samples = job.training.tokens_per_iteration / sequence_length;
  if (windows < samples) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: data.path holds {} samples of {} tokens, fewer than the {} of one iteration, which would train "
        "on some of them twice; name more data, or fewer training.tokens_per_iteration",
        job.data.paths.front(), windows, sequence_length, samples));
  }
  const SampleOrder order(job.training.seed, job.data.shuffle, windows, samples);
  return std::unique_ptr<TrainingData>(new TrainingData(std::move(corpus), order, sequence_length));
}

absl::Status TrainingData::Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                                std::span<int32_t> targets) {
  const auto s = static_cast<size_t>(sequence_length_);
  GP_CHECK(inputs.size() == samples * s && targets.size() == samples * s, "{} samples of {} into {} and {} tokens",
           samples, s, inputs.size(), targets.size());
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t begin = order_.Window(iteration, first_sample + sample) * sequence_length_;
    GP_RETURN_IF_ERROR(corpus_->Copy(begin, window_));
    std::copy_n(window_.begin(), s, inputs.begin() + sample * s);
    std::copy_n(window_.begin() + 1, s, targets.begin() + sample * s);
  }
  return absl::OkStatus();
}

}  // namespace geopipe
