#include "runtime/data/samples/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Windows that are wanted of some data.
struct Sought {
  std::string name;
  int64_t samples = 0;  // of one iteration
};

absl::StatusOr<int64_t> WindowsOf(int64_t tokens, int64_t sequence_length, const Sought& sought) {
  const int64_t windows = (tokens - 1) / sequence_length;
  if (windows < 1) {
    return absl::InvalidArgumentError(
        fmt::format("{}: data.path holds {} tokens, fewer than one sample of {}; name more data, or a shorter "
                    "search.sequence_length",
                    sought.name, tokens, sequence_length + 1));
  }
  if (windows < sought.samples) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: data.path holds {} samples of {} tokens, fewer than the {} of one iteration, which would train "
        "on some of them twice; name more data, or fewer training.tokens_per_iteration",
        sought.name, windows, sequence_length, sought.samples));
  }
  return windows;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const JobSpec& job, int64_t sequence_length) {
  GP_ASSIGN_OR_RETURN(std::unique_ptr<Corpus> corpus, OpenCorpus(job.data, job.model.vocab_size));
  return Create(std::move(corpus), job, sequence_length);
}

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Create(std::unique_ptr<Corpus> corpus, const JobSpec& job,
                                                                   int64_t sequence_length) {
  GP_CHECK(sequence_length >= 1 && job.training.tokens_per_iteration % sequence_length == 0, "{} tokens, s = {}",
           job.training.tokens_per_iteration, sequence_length);
  const int64_t samples = job.training.tokens_per_iteration / sequence_length;
  const std::optional<SampleMix> mix =
      job.data.weights.empty() ? std::nullopt : std::optional<SampleMix>(std::in_place, job.data.weights);
  std::vector<int64_t> tokens{corpus->tokens()};
  if (mix.has_value()) {
    tokens = corpus->file_tokens();
    GP_CHECK(tokens.size() == job.data.weights.size(), "{} weights of {} files", job.data.weights.size(),
             tokens.size());
  }
  std::vector<Part> parts;
  int64_t first_token = 0;
  for (size_t part = 0; part < tokens.size(); ++part) {
    const Sought sought{.name = mix.has_value() || job.data.paths.size() == 1
                                    ? job.data.paths[part]
                                    : fmt::format("{} and {} more", job.data.paths.front(), job.data.paths.size() - 1),
                        .samples = mix.has_value() ? mix->Count(part, samples) : samples};
    GP_ASSIGN_OR_RETURN(const int64_t windows, WindowsOf(tokens[part], sequence_length, sought));
    parts.push_back({.first_token = first_token,
                     .order = SampleOrder(job.training.seed, job.data.shuffle, windows, samples, part)});
    first_token += tokens[part];
  }
  return std::unique_ptr<TrainingData>(
      new TrainingData(std::move(corpus), std::move(parts), mix, samples, sequence_length));
}

int64_t TrainingData::Begin(int64_t iteration, int64_t sample) const {
  if (!mix_.has_value()) {
    return parts_.front().order.Window(iteration, sample) * sequence_length_;
  }
  GP_CHECK(iteration >= 0 && sample >= 0 && sample < samples_per_iteration_, "sample {} of iteration {}", sample,
           iteration);
  const SampleMix::Place place = mix_->At(iteration * samples_per_iteration_ + sample);
  const Part& part = parts_[place.file];
  return part.first_token + part.order.At(place.index) * sequence_length_;
}

absl::Status TrainingData::Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                                std::span<int32_t> targets) {
  const auto s = static_cast<size_t>(sequence_length_);
  GP_CHECK(inputs.size() == samples * s && targets.size() == samples * s, "{} samples of {} into {} and {} tokens",
           samples, s, inputs.size(), targets.size());
  for (int64_t sample = 0; sample < samples; ++sample) {
    GP_RETURN_IF_ERROR(corpus_->Copy(Begin(iteration, first_sample + sample), window_));
    std::copy_n(window_.begin(), s, inputs.begin() + sample * s);
    std::copy_n(window_.begin() + 1, s, targets.begin() + sample * s);
  }
  return absl::OkStatus();
}

}  // namespace geopipe
