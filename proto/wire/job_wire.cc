#include "proto/wire/job_wire.h"

#include <array>
#include <limits>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/fields.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

using wire::Assign;
using wire::CheckCount;
using wire::CheckEach;
using wire::CheckFinite;
using wire::CheckName;
using wire::CheckRange;
using wire::CheckText;
using wire::EnumFromProto;
using wire::EnumName;
using wire::EnumToProto;
using wire::kMaxInt64;
using wire::ToVector;
using wire::Under;

constexpr std::array<EnumName<DataFormat, v1::DataFormat>, 2> kDataFormats{{
    {DataFormat::kTokens, v1::DATA_FORMAT_TOKENS},
    {DataFormat::kText, v1::DATA_FORMAT_TEXT},
}};

constexpr std::array<EnumName<TokenDtype, v1::TokenDtype>, 2> kTokenDtypes{{
    {TokenDtype::kUint16, v1::TOKEN_DTYPE_UINT16},
    {TokenDtype::kUint32, v1::TOKEN_DTYPE_UINT32},
}};

constexpr std::array<EnumName<Precision, v1::Precision>, 2> kPrecisions{{
    {Precision::kFp32, v1::PRECISION_FP32},
    {Precision::kBf16, v1::PRECISION_BF16},
}};

constexpr std::array<EnumName<BackendKind, v1::BackendKind>, 3> kBackends{{
    {BackendKind::kCpu, v1::BACKEND_KIND_CPU},
    {BackendKind::kCuda, v1::BACKEND_KIND_CUDA},
    {BackendKind::kModelled, v1::BACKEND_KIND_MODELLED},
}};

constexpr double kLowest = std::numeric_limits<double>::lowest();

absl::Status CheckPaths(std::string_view field, const google::protobuf::RepeatedPtrField<std::string>& paths) {
  GP_RETURN_IF_ERROR(CheckCount(field, paths.size(), wire::kMaxPaths));
  for (int i = 0; i < paths.size(); ++i) {
    GP_RETURN_IF_ERROR(CheckText(fmt::format("{}[{}]", field, i), paths[i], wire::kMaxPathBytes));
  }
  return absl::OkStatus();
}

}  // namespace

v1::Precision ToProto(Precision precision) { return EnumToProto(kPrecisions, precision); }
v1::BackendKind ToProto(BackendKind backend) { return EnumToProto(kBackends, backend); }

absl::StatusOr<Precision> FromProto(v1::Precision precision) {
  return EnumFromProto(kPrecisions, "precision", precision);
}
absl::StatusOr<BackendKind> FromProto(v1::BackendKind backend) { return EnumFromProto(kBackends, "backend", backend); }

v1::ModelSpec ToProto(const ModelSpec& model) {
  v1::ModelSpec message;
  message.set_hidden_size(model.hidden_size);
  message.set_intermediate_size(model.intermediate_size);
  message.set_num_hidden_layers(model.num_hidden_layers);
  message.set_num_attention_heads(model.num_attention_heads);
  message.set_num_key_value_heads(model.num_key_value_heads);
  message.set_vocab_size(model.vocab_size);
  message.set_max_position_embeddings(model.max_position_embeddings);
  message.set_rope_theta(model.rope_theta);
  message.set_rms_norm_eps(model.rms_norm_eps);
  message.set_tie_word_embeddings(model.tie_word_embeddings);
  return message;
}

absl::StatusOr<ModelSpec> FromProto(const v1::ModelSpec& message) {
  GP_RETURN_IF_ERROR(CheckFinite("model.rope_theta", message.rope_theta(), 0));
  GP_RETURN_IF_ERROR(CheckFinite("model.rms_norm_eps", message.rms_norm_eps(), 0));
  ModelSpec model{.hidden_size = message.hidden_size(),
                  .intermediate_size = message.intermediate_size(),
                  .num_hidden_layers = message.num_hidden_layers(),
                  .num_attention_heads = message.num_attention_heads(),
                  .num_key_value_heads = message.num_key_value_heads(),
                  .vocab_size = message.vocab_size(),
                  .max_position_embeddings = message.max_position_embeddings(),
                  .rope_theta = message.rope_theta(),
                  .rms_norm_eps = message.rms_norm_eps(),
                  .tie_word_embeddings = message.tie_word_embeddings()};
  GP_RETURN_IF_ERROR(ValidateModel(model));
  return model;
}

v1::DataSpec ToProto(const DataSpec& data) {
  v1::DataSpec message;
  message.set_format(EnumToProto(kDataFormats, data.format));
  for (const std::string& path : data.paths) {
    message.add_paths(path);
  }
  message.set_dtype(EnumToProto(kTokenDtypes, data.dtype));
  message.set_shuffle(data.shuffle);
  message.set_tokenizer(data.tokenizer);
  return message;
}

absl::StatusOr<DataSpec> FromProto(const v1::DataSpec& message) {
  DataSpec data;
  GP_ASSIGN_OR_RETURN(data.format, EnumFromProto(kDataFormats, "format", message.format()));
  GP_ASSIGN_OR_RETURN(data.dtype, EnumFromProto(kTokenDtypes, "dtype", message.dtype()));
  GP_RETURN_IF_ERROR(CheckPaths("paths", message.paths()));
  GP_RETURN_IF_ERROR(CheckText("tokenizer", message.tokenizer(), wire::kMaxPathBytes));
  data.paths = ToVector(message.paths());
  data.shuffle = message.shuffle();
  data.tokenizer = message.tokenizer();
  return data;
}

v1::TrainingSpec ToProto(const TrainingSpec& training) {
  v1::TrainingSpec message;
  message.set_iterations(training.iterations);
  message.set_tokens_per_iteration(training.tokens_per_iteration);
  message.set_seed(training.seed);
  message.set_learning_rate(training.learning_rate);
  message.set_warmup_iterations(training.warmup_iterations);
  if (training.min_learning_rate.has_value()) {
    message.set_min_learning_rate(*training.min_learning_rate);
  }
  message.set_beta1(training.beta1);
  message.set_beta2(training.beta2);
  message.set_eps(training.eps);
  message.set_weight_decay(training.weight_decay);
  if (training.grad_clip.has_value()) {
    message.set_grad_clip(*training.grad_clip);
  }
  return message;
}

absl::StatusOr<TrainingSpec> FromProto(const v1::TrainingSpec& message) {
  // NaN would slip through comparisons further on.
  const std::array<std::pair<std::string_view, double>, 7> numbers{{{"learning_rate", message.learning_rate()},
                                                                    {"min_learning_rate", message.min_learning_rate()},
                                                                    {"beta1", message.beta1()},
                                                                    {"beta2", message.beta2()},
                                                                    {"eps", message.eps()},
                                                                    {"weight_decay", message.weight_decay()},
                                                                    {"grad_clip", message.grad_clip()}}};
  for (const auto& [field, value] : numbers) {
    GP_RETURN_IF_ERROR(CheckFinite(field, value, kLowest));
  }
  TrainingSpec training;
  training.iterations = message.iterations();
  training.tokens_per_iteration = message.tokens_per_iteration();
  training.seed = message.seed();
  training.learning_rate = message.learning_rate();
  training.warmup_iterations = message.warmup_iterations();
  training.min_learning_rate =
      message.has_min_learning_rate() ? std::optional<double>(message.min_learning_rate()) : std::nullopt;
  training.beta1 = message.beta1();
  training.beta2 = message.beta2();
  training.eps = message.eps();
  training.weight_decay = message.weight_decay();
  training.grad_clip = message.has_grad_clip() ? std::optional<double>(message.grad_clip()) : std::nullopt;
  return training;
}

v1::ParallelismSpec ToProto(const ParallelismSpec& parallelism) {
  v1::ParallelismSpec message;
  message.set_tensor(parallelism.tensor);
  message.set_pipeline(parallelism.pipeline);
  message.set_data(parallelism.data);
  message.set_sequence_parallel(parallelism.sequence_parallel);
  message.set_zero_stage(parallelism.zero_stage);
  if (parallelism.recompute.has_value()) {
    message.set_recompute(ToProto(*parallelism.recompute));
  }
  message.set_even_layers(parallelism.layers == LayerSplit::kEven);
  return message;
}

absl::StatusOr<ParallelismSpec> FromProto(const v1::ParallelismSpec& message) {
  ParallelismSpec parallelism{.tensor = message.tensor(),
                              .pipeline = message.pipeline(),
                              .data = message.data(),
                              .sequence_parallel = message.sequence_parallel(),
                              .zero_stage = message.zero_stage(),
                              .recompute = std::nullopt,
                              .layers = message.even_layers() ? LayerSplit::kEven : LayerSplit::kAuto};
  if (message.recompute() != v1::RECOMPUTE_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(parallelism.recompute, FromProto(message.recompute()));
  }
  return parallelism;
}

v1::SearchSpec ToProto(const SearchSpec& search) {
  v1::SearchSpec message;
  Assign(search.micro_batch_size, message.mutable_micro_batch_size());
  Assign(search.sequence_length, message.mutable_sequence_length());
  message.set_max_delta_n(search.max_delta_n);
  message.set_schedule(search.schedule);
  message.set_seed(search.seed);
  message.set_time_budget_ns(search.time_budget_ns);
  message.set_max_evaluations(search.max_evaluations);
  return message;
}

absl::StatusOr<SearchSpec> FromProto(const v1::SearchSpec& message) {
  // Products of b, s and dp must stay within int64_t.
  constexpr int64_t kMaxChoice = int64_t{1} << 24;
  GP_RETURN_IF_ERROR(CheckEach("micro_batch_size", message.micro_batch_size(), wire::kMaxChoices, 1, kMaxChoice));
  GP_RETURN_IF_ERROR(CheckEach("sequence_length", message.sequence_length(), wire::kMaxChoices, 1, kMaxChoice));
  GP_RETURN_IF_ERROR(CheckName("schedule", message.schedule()));
  return SearchSpec{.micro_batch_size = ToVector(message.micro_batch_size()),
                    .sequence_length = ToVector(message.sequence_length()),
                    .max_delta_n = message.max_delta_n(),
                    .schedule = message.schedule(),
                    .seed = message.seed(),
                    .time_budget_ns = message.time_budget_ns(),
                    .max_evaluations = message.max_evaluations()};
}

v1::CheckpointSpec ToProto(const CheckpointSpec& checkpoint) {
  v1::CheckpointSpec message;
  message.set_path(checkpoint.path);
  message.set_every(checkpoint.every);
  message.set_keep(checkpoint.keep);
  message.set_replicate(checkpoint.replicate);
  return message;
}

absl::StatusOr<CheckpointSpec> FromProto(const v1::CheckpointSpec& message) {
  GP_RETURN_IF_ERROR(CheckText("path", message.path(), wire::kMaxPathBytes));
  return CheckpointSpec{
      .path = message.path(), .every = message.every(), .keep = message.keep(), .replicate = message.replicate()};
}

v1::ReplanSpec ToProto(const ReplanSpec& replan) {
  v1::ReplanSpec message;
  message.set_drift(replan.drift);
  message.set_min_gain(replan.min_gain);
  message.set_cooldown(replan.cooldown);
  message.set_allow_numeric_change(replan.allow_numeric_change);
  return message;
}

absl::StatusOr<ReplanSpec> FromProto(const v1::ReplanSpec& message) {
  GP_RETURN_IF_ERROR(CheckFinite("drift", message.drift(), 0));
  GP_RETURN_IF_ERROR(CheckFinite("min_gain", message.min_gain(), 0));
  return ReplanSpec{.drift = message.drift(),
                    .min_gain = message.min_gain(),
                    .cooldown = message.cooldown(),
                    .allow_numeric_change = message.allow_numeric_change()};
}

v1::JobSpec ToProto(const JobSpec& job) {
  v1::JobSpec message;
  message.set_name(job.name);
  *message.mutable_model() = ToProto(job.model);
  message.set_init_from(job.init_from);
  *message.mutable_data() = ToProto(job.data);
  *message.mutable_training() = ToProto(job.training);
  message.set_precision(ToProto(job.precision));
  *message.mutable_parallelism() = ToProto(job.parallelism);
  *message.mutable_search() = ToProto(job.search);
  for (const std::string& site : job.placement.sites) {
    message.add_placement_sites(site);
  }
  *message.mutable_checkpoint() = ToProto(job.checkpoint);
  *message.mutable_replan() = ToProto(job.replan);
  return message;
}

absl::StatusOr<JobSpec> FromProto(const v1::JobSpec& message) {
  JobSpec job;
  GP_RETURN_IF_ERROR(CheckName("name", message.name()));
  job.name = message.name();
  GP_ASSIGN_OR_RETURN(job.model, FromProto(message.model()));
  GP_RETURN_IF_ERROR(CheckText("init_from", message.init_from(), wire::kMaxPathBytes));
  job.init_from = message.init_from();
  GP_ASSIGN_OR_RETURN(job.data, Under("data", FromProto(message.data())));
  GP_ASSIGN_OR_RETURN(job.training, Under("training", FromProto(message.training())));
  GP_ASSIGN_OR_RETURN(job.precision, FromProto(message.precision()));
  GP_ASSIGN_OR_RETURN(job.parallelism, Under("parallelism", FromProto(message.parallelism())));
  GP_ASSIGN_OR_RETURN(job.search, Under("search", FromProto(message.search())));
  GP_RETURN_IF_ERROR(CheckCount("placement_sites", message.placement_sites_size(), wire::kMaxSites));
  for (int i = 0; i < message.placement_sites_size(); ++i) {
    GP_RETURN_IF_ERROR(CheckName(fmt::format("placement_sites[{}]", i), message.placement_sites(i)));
  }
  job.placement.sites = ToVector(message.placement_sites());
  GP_ASSIGN_OR_RETURN(job.checkpoint, Under("checkpoint", FromProto(message.checkpoint())));
  GP_ASSIGN_OR_RETURN(job.replan, Under("replan", FromProto(message.replan())));
  GP_RETURN_IF_ERROR(ValidateJob(job));
  return job;
}

v1::RunOptions ToProto(const RunOptions& run) {
  v1::RunOptions message;
  if (run.schedule.has_value()) {
    message.set_schedule(ToProto(*run.schedule));
  }
  message.set_comm(ToProto(run.comm));
  Assign(run.delta_n, message.mutable_delta_n());
  message.set_backend(ToProto(run.backend));
  message.set_pace(run.pace);
  if (run.explicit_costs.has_value()) {
    *message.mutable_explicit_costs() = ToProto(*run.explicit_costs);
  }
  message.set_stop_after_iterations(run.stop_after_iterations);
  if (run.drill.has_value()) {
    message.mutable_drill()->set_stage(run.drill->stage);
    message.mutable_drill()->set_slowdown(run.drill->slowdown);
  }
  return message;
}

absl::StatusOr<RunOptions> FromProto(const v1::RunOptions& message) {
  RunOptions run;
  if (message.schedule() != v1::SCHEDULE_KIND_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.schedule, FromProto(message.schedule()));
  }
  if (message.comm() != v1::COMM_MODE_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.comm, FromProto(message.comm()));
  }
  GP_RETURN_IF_ERROR(CheckEach("delta_n", message.delta_n(), wire::kMaxStages, 0, wire::kMaxDeltaN));
  run.delta_n = ToVector(message.delta_n());
  if (message.backend() != v1::BACKEND_KIND_UNSPECIFIED) {
    GP_ASSIGN_OR_RETURN(run.backend, FromProto(message.backend()));
  }
  run.pace = message.pace();
  if (message.has_explicit_costs()) {
    GP_ASSIGN_OR_RETURN(run.explicit_costs, Under("explicit_costs", FromProto(message.explicit_costs())));
  }
  GP_RETURN_IF_ERROR(CheckRange("stop_after_iterations", message.stop_after_iterations(), 0, kMaxInt64));
  run.stop_after_iterations = message.stop_after_iterations();
  if (message.has_drill()) {
    constexpr double kLeastSlowdown = 1e-3;
    GP_RETURN_IF_ERROR(CheckRange("drill.stage", message.drill().stage(), 0, wire::kMaxStages - 1));
    GP_RETURN_IF_ERROR(CheckFinite("drill.slowdown", message.drill().slowdown(), kLeastSlowdown));
    run.drill = StageDrill{message.drill().stage(), message.drill().slowdown()};
  }
  return run;
}

}  // namespace geopipe
