#include "optimizer/model/job_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// `rule` completes "key is value; it must be ...".
template <typename T>
absl::Status Require(bool holds, std::string_view key, const T& value, std::string_view rule) {
  return holds ? absl::OkStatus() : Invalid(fmt::format("{} is {}; it must be {}", key, value, rule));
}

absl::Status ValidateTraining(const TrainingSpec& training) {
  GP_RETURN_IF_ERROR(Require(training.warmup_iterations <= training.iterations, "training.warmup_iterations",
                             training.warmup_iterations,
                             fmt::format("from 0 to training.iterations {}", training.iterations)));
  const double minimum = training.min_learning_rate.value_or(0);
  return Require(minimum <= training.learning_rate, "training.min_learning_rate", minimum,
                 fmt::format("from 0 to training.learning_rate {}", training.learning_rate));
}

absl::Status RequireDivides(std::string_view key, int64_t tensor, int64_t size) {
  return Require(size % tensor == 0, "parallelism.tensor", tensor, fmt::format("a divisor of {} {}", key, size));
}

absl::Status RequireDividesVocabulary(const ModelSpec& model, int64_t tensor) {
  const int64_t rows = model.vocab_rows();
  const std::string_view key = model.padded_vocab_size > 0 ? "model.padded_vocab_size" : "model.vocab_size";
  return Require(rows % tensor == 0, "parallelism.tensor", tensor,
                 fmt::format("a divisor of {} {}; or pad the vocabulary, model.padded_vocab_size: {}", key, rows,
                             (rows + tensor - 1) / tensor * tensor));
}

absl::Status ValidateStagesPerRank(const JobSpec& job) {
  const int32_t per_rank = job.parallelism.stages_per_rank;
  GP_RETURN_IF_ERROR(Require(per_rank <= job.model.num_hidden_layers, "parallelism.stages_per_rank", per_rank,
                             fmt::format("at most model.num_hidden_layers {}, because every stage needs a layer",
                                         job.model.num_hidden_layers)));
  const ScheduleRow& row = RowOf(job.search.schedule);
  if (per_rank == 0 || row.kind == ScheduleKind::kAuto) {
    return absl::OkStatus();
  }
  const int32_t fewest = MinStagesPerDevice(row.layout);
  const bool is_looped = row.layout == StageLayout::kLooped;
  return Require(
      is_looped ? per_rank >= fewest : per_rank == fewest, "parallelism.stages_per_rank", per_rank,
      fmt::format("auto or {}{}, because search.schedule is {}", fewest, is_looped ? " or more" : "", row.name));
}

absl::Status ValidateParallelism(const JobSpec& job) {
  const ParallelismSpec& parallelism = job.parallelism;
  GP_RETURN_IF_ERROR(ValidateStagesPerRank(job));
  const int32_t per_rank = MinStagesPerRank(job);
  GP_RETURN_IF_ERROR(Require(parallelism.pipeline * per_rank <= job.model.num_hidden_layers, "parallelism.pipeline",
                             parallelism.pipeline,
                             fmt::format("at most {}model.num_hidden_layers {}, because every stage needs a layer",
                                         per_rank == 1   ? ""
                                         : per_rank == 2 ? "half of "
                                                         : fmt::format("1 / {} of ", per_rank),
                                         job.model.num_hidden_layers)));
  if (parallelism.tensor > 1) {
    GP_RETURN_IF_ERROR(RequireDivides("model.num_attention_heads", parallelism.tensor, job.model.num_attention_heads));
    // If there are fewer key-value heads than tensor ranks, ranks share them.
    GP_RETURN_IF_ERROR(
        Require(job.model.num_key_value_heads % parallelism.tensor == 0 ||
                    parallelism.tensor % job.model.num_key_value_heads == 0,
                "parallelism.tensor", parallelism.tensor,
                fmt::format("a divisor or a multiple of model.num_key_value_heads {}", job.model.num_key_value_heads)));
    GP_RETURN_IF_ERROR(RequireDivides("model.intermediate_size", parallelism.tensor, job.model.intermediate_size));
    GP_RETURN_IF_ERROR(RequireDividesVocabulary(job.model, parallelism.tensor));
  }
  return absl::OkStatus();
}

// m = tokens_per_iteration / (b · s · dp) must be whole for at least one choice of b and s.
absl::Status ValidateMicroBatches(const JobSpec& job) {
  const int64_t tokens = job.training.tokens_per_iteration;
  const int64_t data = std::max<int64_t>(1, job.parallelism.data);
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t greatest_count = 0;
  for (const int64_t b : job.search.micro_batch_size) {
    for (const int64_t s : job.search.sequence_length) {
      const int64_t product = b * s * data;
      least = std::min(least, product);
      if (tokens % product == 0 && tokens / product <= kMaxMicroBatches) {
        return absl::OkStatus();
      }
      greatest_count = tokens % product == 0 ? std::max(greatest_count, tokens / product) : greatest_count;
    }
  }
  if (greatest_count > 0) {
    return Invalid(
        fmt::format("training.tokens_per_iteration {} makes more than {} micro-batches for every choice of "
                    "search.micro_batch_size [{}] and search.sequence_length [{}]; use larger ones",
                    tokens, kMaxMicroBatches, fmt::join(job.search.micro_batch_size, ", "),
                    fmt::join(job.search.sequence_length, ", ")));
  }
  const int64_t below = tokens / least * least;
  const int64_t above = below + least;
  const int64_t nearest = below > 0 && tokens - below <= above - tokens ? below : above;
  return Invalid(fmt::format(
      "training.tokens_per_iteration {} is not a multiple of micro_batch_size x sequence_length x data for any choice "
      "of search.micro_batch_size [{}], search.sequence_length [{}] and parallelism.data {}; {} would work",
      tokens, fmt::join(job.search.micro_batch_size, ", "), fmt::join(job.search.sequence_length, ", "), data,
      nearest));
}

absl::Status ValidateSearch(const JobSpec& job) {
  const SearchSpec& search = job.search;
  for (const int64_t s : search.sequence_length) {
    GP_RETURN_IF_ERROR(
        Require(s <= job.model.max_position_embeddings, "search.sequence_length", s,
                fmt::format("from 1 to model.max_position_embeddings {}", job.model.max_position_embeddings)));
    GP_RETURN_IF_ERROR(Require(job.model.sliding_window == 0 || s <= job.model.sliding_window, "search.sequence_length",
                               s,
                               fmt::format("at most model.sliding_window {}, for attention covers the whole sequence",
                                           job.model.sliding_window)));
  }
  if (job.parallelism.sequence_parallel && job.parallelism.tensor > 1) {
    for (const int64_t s : search.sequence_length) {
      GP_RETURN_IF_ERROR(Require(
          s % job.parallelism.tensor == 0, "search.sequence_length", s,
          fmt::format("a multiple of parallelism.tensor {} when sequence_parallel is on", job.parallelism.tensor)));
    }
  }
  return ValidateMicroBatches(job);
}

absl::Status ValidateData(std::string_view key, const DataSpec& data, const ModelSpec& model) {
  const bool is_tokens = data.format == DataFormat::kTokens;
  GP_RETURN_IF_ERROR(Require(!is_tokens || data.paths.size() <= kMaxTokenFiles, fmt::format("{}.path", key),
                             fmt::format("a list of {} files", data.paths.size()),
                             fmt::format("at most {} when {}.format is tokens; join some", kMaxTokenFiles, key)));
  GP_RETURN_IF_ERROR(Require(is_tokens || data.weights.empty(), fmt::format("{}.weights", key), data.weights,
                             fmt::format("none, because {}.format is text; tokenize the text first", key)));
  GP_RETURN_IF_ERROR(Require(data.weights.empty() || data.weights.size() == data.paths.size(),
                             fmt::format("{}.weights", key), data.weights,
                             fmt::format("one number for each of the {} files of {}.path", data.paths.size(), key)));
  return Require(
      data.format != DataFormat::kText || data.tokenizer != "byte" || model.vocab_size >= kByteTokenizerVocabulary,
      "model.vocab_size", model.vocab_size,
      fmt::format("at least {} (256 bytes, begin and end of text), because {}.tokenizer is byte",
                  kByteTokenizerVocabulary, key));
}

absl::Status ValidateDocuments(std::string_view key, const DataSpec& data, const ModelSpec& model) {
  const bool needs = data.documents == Documents::kReset && data.format == DataFormat::kTokens;
  const std::string name = fmt::format("{}.end_of_text", key);
  const int64_t token = data.end_of_text.value_or(0);
  GP_RETURN_IF_ERROR(
      Require(!needs || data.end_of_text.has_value(), name, "absent",
              fmt::format("the id of the token that ends a document, because {}.documents is reset", key)));
  GP_RETURN_IF_ERROR(
      Require(needs || !data.end_of_text.has_value(), name, token,
              fmt::format("absent, because it matters with {0}.documents reset and {0}.format tokens alone", key)));
  return Require(token < model.vocab_size, name, token,
                 fmt::format("below model.vocab_size, which is {}", model.vocab_size));
}

absl::Status ValidateEvaluationDocuments(const JobSpec& job) {
  GP_RETURN_IF_ERROR(ValidateDocuments("evaluation.data", job.evaluation.data, job.model));
  const auto text = [](const std::optional<int64_t>& token) {
    return token.has_value() ? fmt::format("reset after token {}", *token) : "packed";
  };
  const std::optional<int64_t> training = job.data.document_end();
  const std::optional<int64_t> validation = job.evaluation.data.document_end();
  return Require(!job.evaluates() || training == validation, "evaluation.data.documents", text(validation),
                 fmt::format("{}, as in data", text(training)));
}

// A path is whole and has no dots in it where a file was read (PathValue), and may be anything on the wire.
absl::Status ValidateCheckpointPath(const std::string& path) {
  constexpr std::string_view kShared = "/dev/shm/";
  for (const std::string_view system : {"/", "/proc", "/sys", "/dev"}) {
    const bool is_it = path == system || path == fmt::format("{}/", system);
    const bool is_below = system != "/" && path.starts_with(fmt::format("{}/", system)) && !path.starts_with(kShared);
    if (is_it || is_below) {
      return Invalid(
          fmt::format("checkpoint.path is {}, {}; name a folder of its own on a disk, like /data/checkpoints", path,
                      system == "/" ? "the root of the file system" : "which keeps no files"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int32_t MinStagesPerRank(const JobSpec& job) {
  return std::max(job.parallelism.stages_per_rank, MinStagesPerDevice(RowOf(job.search.schedule).layout));
}

bool IsJobName(std::string_view name) {
  constexpr size_t kMaxBytes = 63;
  return !name.empty() && name.size() <= kMaxBytes && name.front() != '-' && name.front() != '.' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string_view::npos;
}

absl::Status ValidateJob(const JobSpec& job) {
  GP_RETURN_IF_ERROR(ValidateModel(job.model));
  GP_RETURN_IF_ERROR(ValidateTraining(job.training));
  GP_RETURN_IF_ERROR(ValidateParallelism(job));
  GP_RETURN_IF_ERROR(ValidateSearch(job));
  GP_RETURN_IF_ERROR(ValidateCheckpointPath(job.checkpoint.path));
  GP_RETURN_IF_ERROR(ValidateData("data", job.data, job.model));
  GP_RETURN_IF_ERROR(ValidateData("evaluation.data", job.evaluation.data, job.model));
  GP_RETURN_IF_ERROR(ValidateDocuments("data", job.data, job.model));
  GP_RETURN_IF_ERROR(ValidateEvaluationDocuments(job));
  return Require(job.checkpoint.every == 0 || !job.checkpoint.path.empty(), "checkpoint.path", "empty",
                 "given when checkpoint.every is");
}

}  // namespace geopipe
