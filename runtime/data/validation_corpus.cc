#include "runtime/data/validation_corpus.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "optimizer/base/trouble.h"

namespace geopipe {
namespace {

// The same status, whose sentence names keys of evaluation.data in place of those of data.
absl::Status OfEvaluation(const absl::Status& status) {
  std::string text(status.message());
  for (const std::string_view key : {"data.path", "data.dtype", "data.format", "data.tokenizer"}) {
    const std::string own = fmt::format("evaluation.{}", key);
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + own.size())) {
      text.replace(at, key.size(), own);
    }
  }
  return Reworded(status, text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenValidationCorpus(const JobSpec& job) {
  absl::StatusOr<std::unique_ptr<Corpus>> corpus = OpenCorpus(job.evaluation.data, job.model.vocab_size);
  if (!corpus.ok()) {
    return OfEvaluation(corpus.status());
  }
  const int64_t iterations = job.evaluation.iterations;
  const int64_t tokens = iterations * job.training.tokens_per_iteration;
  if ((*corpus)->tokens() <= tokens) {  // the last sample's target lies behind it
    return absl::InvalidArgumentError(fmt::format(
        "{}: evaluation.data.path holds {} tokens, fewer than the {} of {} and one more; name more data, or fewer {}",
        job.evaluation.data.paths.front(), (*corpus)->tokens(), tokens,
        iterations == 1 ? "one iteration" : fmt::format("{} iterations", iterations),
        iterations == 1 ? "training.tokens_per_iteration" : "evaluation.iterations"));
  }
  return corpus;
}

}  // namespace geopipe
