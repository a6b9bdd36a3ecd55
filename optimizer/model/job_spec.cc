#include "optimizer/model/job_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxTokensPerIteration = int64_t{1} << 40;
constexpr int64_t kMaxMicroBatchSize = int64_t{1} << 20;
constexpr int32_t kMaxDeltaN = 1024;
constexpr int64_t kMaxParallel = 1 << 20;
constexpr size_t kMaxChoices = 64;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// `rule` completes "key is value; it must be ...".
template <typename T>
absl::Status Require(bool holds, std::string_view key, const T& value, std::string_view rule) {
  return holds ? absl::OkStatus() : Invalid(fmt::format("{} is {}; it must be {}", key, value, rule));
}

absl::Status ValidateTraining(const TrainingSpec& training) {
  GP_RETURN_IF_ERROR(Require(training.iterations >= 1, "training.iterations", training.iterations, "at least 1"));
  GP_RETURN_IF_ERROR(
      Require(training.tokens_per_iteration >= 1 && training.tokens_per_iteration <= kMaxTokensPerIteration,
              "training.tokens_per_iteration", training.tokens_per_iteration,
              fmt::format("from 1 to {}", kMaxTokensPerIteration)));
  GP_RETURN_IF_ERROR(Require(std::isfinite(training.learning_rate) && training.learning_rate > 0,
                             "training.learning_rate", training.learning_rate, "finite and positive"));
  GP_RETURN_IF_ERROR(Require(training.warmup_iterations >= 0 && training.warmup_iterations <= training.iterations,
                             "training.warmup_iterations", training.warmup_iterations,
                             fmt::format("from 0 to training.iterations {}", training.iterations)));
  if (training.min_learning_rate.has_value()) {
    const double minimum = *training.min_learning_rate;
    GP_RETURN_IF_ERROR(Require(minimum >= 0 && minimum <= training.learning_rate, "training.min_learning_rate", minimum,
                               fmt::format("from 0 to training.learning_rate {}", training.learning_rate)));
  }
  GP_RETURN_IF_ERROR(Require(training.beta1 >= 0 && training.beta1 < 1, "training.betas[0]", training.beta1,
                             "at least 0 and below 1"));
  GP_RETURN_IF_ERROR(Require(training.beta2 >= 0 && training.beta2 < 1, "training.betas[1]", training.beta2,
                             "at least 0 and below 1"));
  GP_RETURN_IF_ERROR(
      Require(std::isfinite(training.eps) && training.eps > 0, "training.eps", training.eps, "finite and positive"));
  GP_RETURN_IF_ERROR(Require(std::isfinite(training.weight_decay) && training.weight_decay >= 0,
                             "training.weight_decay", training.weight_decay, "finite and not negative"));
  if (training.grad_clip.has_value()) {
    GP_RETURN_IF_ERROR(Require(std::isfinite(*training.grad_clip) && *training.grad_clip > 0, "training.grad_clip",
                               *training.grad_clip, "finite and positive (leave it out for no clipping)"));
  }
  return absl::OkStatus();
}

absl::Status RequireDivides(std::string_view key, int64_t tensor, int64_t size) {
  return Require(size % tensor == 0, "parallelism.tensor", tensor, fmt::format("a divisor of {} {}", key, size));
}

absl::Status ValidateParallelism(const JobSpec& job) {
  const ParallelismSpec& parallelism = job.parallelism;
  const std::string range = fmt::format("from 1 to {}, or auto", kMaxParallel);
  GP_RETURN_IF_ERROR(Require(parallelism.tensor >= 0 && parallelism.tensor <= kMaxParallel, "parallelism.tensor",
                             parallelism.tensor, range));
  GP_RETURN_IF_ERROR(Require(parallelism.pipeline >= 0 && parallelism.pipeline <= kMaxParallel, "parallelism.pipeline",
                             parallelism.pipeline, range));
  GP_RETURN_IF_ERROR(
      Require(parallelism.data >= 0 && parallelism.data <= kMaxParallel, "parallelism.data", parallelism.data, range));
  GP_RETURN_IF_ERROR(Require(parallelism.zero_stage >= 0 && parallelism.zero_stage <= 3, "parallelism.zero_stage",
                             parallelism.zero_stage, "0, 1, 2 or 3"));
  GP_RETURN_IF_ERROR(Require(parallelism.pipeline <= job.model.num_hidden_layers, "parallelism.pipeline",
                             parallelism.pipeline,
                             fmt::format("at most model.num_hidden_layers {}, because every stage needs a layer",
                                         job.model.num_hidden_layers)));
  if (parallelism.tensor > 1) {
    GP_RETURN_IF_ERROR(RequireDivides("model.num_key_value_heads", parallelism.tensor, job.model.num_key_value_heads));
    GP_RETURN_IF_ERROR(RequireDivides("model.intermediate_size", parallelism.tensor, job.model.intermediate_size));
    GP_RETURN_IF_ERROR(RequireDivides("model.vocab_size", parallelism.tensor, job.model.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status ValidateChoices(std::string_view key, const std::vector<int64_t>& choices, int64_t greatest,
                             std::string_view greatest_key) {
  GP_RETURN_IF_ERROR(Require(!choices.empty() && choices.size() <= kMaxChoices, key, choices,
                             fmt::format("a list of 1 to {} values", kMaxChoices)));
  std::set<int64_t> seen;
  for (const int64_t choice : choices) {
    GP_RETURN_IF_ERROR(
        Require(choice >= 1 && choice <= greatest, key, choice, fmt::format("from 1 to {}{}", greatest_key, greatest)));
    GP_RETURN_IF_ERROR(Require(seen.insert(choice).second, key, choice, "listed only once"));
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
  GP_RETURN_IF_ERROR(ValidateChoices("search.micro_batch_size", search.micro_batch_size, kMaxMicroBatchSize, ""));
  GP_RETURN_IF_ERROR(ValidateChoices("search.sequence_length", search.sequence_length,
                                     job.model.max_position_embeddings, "model.max_position_embeddings "));
  if (job.parallelism.sequence_parallel && job.parallelism.tensor > 1) {
    for (const int64_t s : search.sequence_length) {
      GP_RETURN_IF_ERROR(Require(
          s % job.parallelism.tensor == 0, "search.sequence_length", s,
          fmt::format("a multiple of parallelism.tensor {} when sequence_parallel is on", job.parallelism.tensor)));
    }
  }
  GP_RETURN_IF_ERROR(Require(search.max_delta_n >= 0 && search.max_delta_n <= kMaxDeltaN, "search.max_delta_n",
                             search.max_delta_n, fmt::format("from 0 to {}", kMaxDeltaN)));
  GP_RETURN_IF_ERROR(
      Require(search.max_evaluations >= 1, "search.max_evaluations", search.max_evaluations, "at least 1"));
  GP_RETURN_IF_ERROR(
      Require(search.time_budget_ns >= 1, "search.time_budget", search.time_budget_ns, "a positive duration"));
  const absl::StatusOr<ScheduleKind> kind = ParseScheduleKind(search.schedule);
  if (search.schedule != "auto" && !(kind.ok() && IsSearched(*kind))) {
    return Invalid(fmt::format("search.schedule is \"{}\"; it must be auto, {}, {} or {}", search.schedule,
                               ScheduleKindName(ScheduleKind::kGpipe), ScheduleKindName(ScheduleKind::kOneFOneB),
                               ScheduleKindName(ScheduleKind::kGeoPipe)));
  }
  return ValidateMicroBatches(job);
}

absl::Status ValidateRest(const JobSpec& job) {
  std::set<std::string_view> sites;
  for (const std::string& site : job.placement.sites) {
    GP_RETURN_IF_ERROR(Require(!site.empty(), "placement.sites", "\"\"", "a list of site names"));
    GP_RETURN_IF_ERROR(Require(sites.insert(site).second, "placement.sites", site, "listed only once"));
  }
  GP_RETURN_IF_ERROR(Require(job.data.format != DataFormat::kTokens || job.data.paths.size() <= 1, "data.path",
                             job.data.paths, "exactly one file when data.format is tokens"));
  const CheckpointSpec& checkpoint = job.checkpoint;
  GP_RETURN_IF_ERROR(Require(checkpoint.every >= 0, "checkpoint.every", checkpoint.every, "0 (none) or positive"));
  GP_RETURN_IF_ERROR(Require(checkpoint.keep >= 1, "checkpoint.keep", checkpoint.keep, "at least 1"));
  GP_RETURN_IF_ERROR(Require(checkpoint.every == 0 || !checkpoint.path.empty(), "checkpoint.path", "empty",
                             "given when checkpoint.every is"));
  GP_RETURN_IF_ERROR(Require(checkpoint.replicate >= 0, "checkpoint.replicate", checkpoint.replicate, "0 or positive"));
  const ReplanSpec& replan = job.replan;
  GP_RETURN_IF_ERROR(Require(std::isfinite(replan.drift) && replan.drift >= 0, "replan.drift", replan.drift,
                             "finite and not negative"));
  GP_RETURN_IF_ERROR(Require(std::isfinite(replan.min_gain) && replan.min_gain >= 0, "replan.min_gain", replan.min_gain,
                             "finite and not negative"));
  return Require(replan.cooldown >= 0, "replan.cooldown", replan.cooldown, "0 or positive");
}

}  // namespace

bool IsSearched(ScheduleKind kind) {
  return kind == ScheduleKind::kGpipe || kind == ScheduleKind::kOneFOneB || kind == ScheduleKind::kGeoPipe ||
         kind == ScheduleKind::kAuto;
}

absl::Status ValidateJob(const JobSpec& job) {
  GP_RETURN_IF_ERROR(ValidateModel(job.model));
  GP_RETURN_IF_ERROR(ValidateTraining(job.training));
  GP_RETURN_IF_ERROR(ValidateParallelism(job));
  GP_RETURN_IF_ERROR(ValidateSearch(job));
  return ValidateRest(job);
}

}  // namespace geopipe
