#include "coordinator/spec/job_file.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/spec/hf_config.h"
#include "coordinator/spec/located_error.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/schema.h"

namespace geopipe {
namespace {

// Keys of spec.model as given; what is not given comes from the preset or from init_from.
struct ModelFile {
  std::string preset;
  std::string init_from;
  std::optional<int64_t> hidden_size;
  std::optional<int64_t> intermediate_size;
  std::optional<int64_t> num_hidden_layers;
  std::optional<int64_t> num_attention_heads;
  std::optional<int64_t> num_key_value_heads;
  std::optional<int64_t> vocab_size;
  std::optional<int64_t> max_position_embeddings;
  std::optional<double> rope_theta;
  std::optional<double> rms_norm_eps;
  std::optional<bool> tie_word_embeddings;
};

struct JobFile {
  std::string api_version;
  std::string kind;
  std::string name;
  ModelFile model;
  DataSpec data;
  TrainingSpec training;
  Precision precision = Precision::kFp32;
  ParallelismSpec parallelism;
  SearchSpec search;
  PlacementSpec placement;
  CheckpointSpec checkpoint;
  ReplanSpec replan;
};

// A value that need not be given; `default_text` says in the reference what then holds.
template <class M>
ValueType<std::optional<M>> Given(ValueType<M> type, std::string default_text) {
  ValueType<std::optional<M>> given;
  given.name = type.name;
  given.read = [read = std::move(type.read)](const YamlNode& node) -> absl::StatusOr<std::optional<M>> {
    GP_ASSIGN_OR_RETURN(M value, read(node));
    return std::optional<M>(std::move(value));
  };
  given.show = [default_text = std::move(default_text)](const std::optional<M>&) { return default_text; };
  return given;
}

Schema<ModelFile> ModelSchema(const std::string& folder) {
  using F = ModelFile;
  return Schema<F>()
      .Key("preset", StringValue(), &F::preset,
           "A published model: " + fmt::format("{}", fmt::join(ModelPresetNames(), ", ")) + ".")
      .Key("init_from", PathValue(folder), &F::init_from,
           "Hugging Face directory to take the model and its weights from.")
      .Key("hidden_size", Given(IntegerValue(), ""), &F::hidden_size, "Width of the residual stream.")
      .Key("intermediate_size", Given(IntegerValue(), ""), &F::intermediate_size, "Width of the SwiGLU MLP.")
      .Key("num_hidden_layers", Given(IntegerValue(), ""), &F::num_hidden_layers, "Decoder layers.")
      .Key("num_attention_heads", Given(IntegerValue(), ""), &F::num_attention_heads,
           "Query heads; must divide hidden_size.")
      .Key("num_key_value_heads", Given(IntegerValue(), "num_attention_heads"), &F::num_key_value_heads,
           "Key and value heads; must divide num_attention_heads.")
      .Key("vocab_size", Given(IntegerValue(), ""), &F::vocab_size, "Tokens of the vocabulary (byte tokenizer: 258).")
      .Key("max_position_embeddings", Given(IntegerValue(), "2048"), &F::max_position_embeddings,
           "Longest sequence of the model.")
      .Key("rope_theta", Given(NumberValue(), "10000"), &F::rope_theta, "Base of the rotary embedding.")
      .Key("rms_norm_eps", Given(NumberValue(), "1e-05"), &F::rms_norm_eps, "Epsilon of RMSNorm.")
      .Key("tie_word_embeddings", Given(BooleanValue(), "false"), &F::tie_word_embeddings,
           "Whether the head uses the embedding's weights.");
}

Schema<DataSpec> DataSchema(const std::string& folder) {
  using D = DataSpec;
  return Schema<D>()
      .Key("format", ChoiceValue<DataFormat>({{"tokens", DataFormat::kTokens}, {"text", DataFormat::kText}}),
           &D::format, "tokens: one flat little-endian file; text: any text files.")
      .Key("path", ListValue(PathValue(folder)), &D::paths, "The token file, or text files and globs.", Need::kRequired)
      .Key("dtype", ChoiceValue<TokenDtype>({{"uint16", TokenDtype::kUint16}, {"uint32", TokenDtype::kUint32}}),
           &D::dtype, "Type of a token (format tokens).")
      .Key("shuffle", BooleanValue(), &D::shuffle, "Seeded order of samples, another in each epoch of the data.")
      .Key("tokenizer", ChoiceValue<std::string>({{"byte", "byte"}}), &D::tokenizer,
           "How text becomes tokens: 256 bytes, begin and end (format text).");
}

ValueType<std::pair<double, double>> BetasValue() {
  ValueType<std::pair<double, double>> type;
  type.name = "list of 2 numbers";
  type.read = [](const YamlNode& node) -> absl::StatusOr<std::pair<double, double>> {
    GP_ASSIGN_OR_RETURN(const std::vector<double> betas, ListValue(NumberValue()).read(node));
    if (betas.size() != 2) {
      return absl::InvalidArgumentError(fmt::format("has {} numbers; write two, like [0.9, 0.95]", betas.size()));
    }
    return std::pair(betas[0], betas[1]);
  };
  type.show = [](const std::pair<double, double>& betas) { return fmt::format("[{}, {}]", betas.first, betas.second); };
  return type;
}

Schema<TrainingSpec> TrainingSchema() {
  using T = TrainingSpec;
  return Schema<T>()
      .Key("iterations", IntegerValue(), &T::iterations, "Weight updates.", Need::kRequired)
      .Key("tokens_per_iteration", IntegerValue(), &T::tokens_per_iteration,
           "Tokens of one update; a multiple of micro_batch_size x sequence_length x data.", Need::kRequired)
      .Key("seed", UnsignedValue(), &T::seed, "Of the initial weights and of the order of samples.")
      .Key("learning_rate", NumberValue(), &T::learning_rate, "Greatest learning rate.")
      .Key("warmup_iterations", IntegerValue(), &T::warmup_iterations, "Linear warm-up to learning_rate.")
      .Key("min_learning_rate", OptionalValue("none", NumberValue()), &T::min_learning_rate,
           "Where the cosine after the warm-up ends; none: constant.")
      .Key<std::pair<double, double>>(
          "betas", BetasValue(), [](const T& t) { return std::pair(t.beta1, t.beta2); },
          [](T* t, std::pair<double, double> betas) { std::tie(t->beta1, t->beta2) = betas; },
          "Decay of AdamW's moments.")
      .Key("eps", NumberValue(), &T::eps, "Epsilon of AdamW.")
      .Key("weight_decay", NumberValue(), &T::weight_decay, "Decoupled, on tensors of two or more dimensions.")
      .Key("grad_clip", OptionalValue("none", NumberValue()), &T::grad_clip,
           "Greatest global gradient norm; none: no clipping, and nothing waits for the norm.");
}

Schema<ParallelismSpec> ParallelismSchema() {
  using P = ParallelismSpec;
  const auto degree = [] { return WordOr<int64_t>("auto", 0, IntegerValue()); };
  return Schema<P>()
      .Key("tensor", degree(), &P::tensor, "Tensor-parallel degree, inside a node.")
      .Key("pipeline", degree(), &P::pipeline, "Pipeline stages; auto: all devices of the sites.")
      .Key("data", degree(), &P::data, "Data-parallel degree, inside a site.")
      .Key("sequence_parallel", BooleanValue(), &P::sequence_parallel,
           "Norm regions split over the tensor-parallel ranks.")
      .Key("zero_stage", Integer32Value(), &P::zero_stage, "What ZeRO divides over data-parallel ranks: 0 to 3.")
      .Key("recompute",
           OptionalValue("auto", ChoiceValue<Recompute>({{"none", Recompute::kNone},
                                                         {"selective", Recompute::kSelective},
                                                         {"full", Recompute::kFull}})),
           &P::recompute, "Activations computed again in the backward pass.")
      .Key("layers", ChoiceValue<LayerSplit>({{"auto", LayerSplit::kAuto}, {"even", LayerSplit::kEven}}), &P::layers,
           "How many each stage gets; auto: so that stages balance (while training: even).");
}

Schema<SearchSpec> SearchSchema() {
  using S = SearchSpec;
  return Schema<S>()
      .Key("micro_batch_size", ListValue(IntegerValue()), &S::micro_batch_size, "Candidates for b.")
      .Key("sequence_length", Showing("[max_position_embeddings]", ListValue(IntegerValue())), &S::sequence_length,
           "Candidates for s: lengths that are equivalent for the training.")
      .Key("max_delta_n", Integer32Value(), &S::max_delta_n,
           "Greatest number of extra forward micro-batches per crossing.")
      .Key("schedule",
           ChoiceValue<std::string>({{"auto", "auto"}, {"gpipe", "gpipe"}, {"1f1b", "1f1b"}, {"geopipe", "geopipe"}}),
           &S::schedule, "Kind of schedule; auto: the best.")
      .Key("seed", UnsignedValue(), &S::seed, "Of the genetic search: same seed, same plan.")
      .Key("time_budget", DurationValue(), &S::time_budget_ns, "The search stops between generations after this.")
      .Key("max_evaluations", IntegerValue(), &S::max_evaluations, "The search stops after so many simulated plans.");
}

Schema<JobFile> SpecSchema(const std::string& folder) {
  using J = JobFile;
  return Schema<J>()
      .Map("model", ModelSchema(folder), &J::model, "A Llama model: preset, init_from, or the keys of config.json.",
           Need::kRequired)
      .Map("data", DataSchema(folder), &J::data, "Training data.", Need::kRequired)
      .Map("training", TrainingSchema(), &J::training, "What is trained, and how.", Need::kRequired)
      .Key("precision", ChoiceValue<Precision>({{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}}), &J::precision,
           "Of activations and messages; bf16 keeps fp32 master weights.")
      .Map("parallelism", ParallelismSchema(), &J::parallelism, "Degrees of parallelism.")
      .Map("search", SearchSchema(), &J::search, "What the planner may choose from.")
      .Map("placement",
           Schema<PlacementSpec>().Key("sites", WordOr<std::vector<std::string>>("auto", {}, ListValue(StringValue())),
                                       &PlacementSpec::sites, "Sites in pipeline order; auto: orders are tried."),
           &J::placement, "Where stages go.", Need::kOptional, "auto")
      .Map("checkpoint",
           Schema<CheckpointSpec>()
               .Key("path", PathValue(folder), &CheckpointSpec::path, "Folder; none: no checkpoints.")
               .Key("every", IntegerValue(), &CheckpointSpec::every, "Iterations between checkpoints; 0: none.")
               .Key("keep", IntegerValue(), &CheckpointSpec::keep, "Latest checkpoints that stay.")
               .Key("replicate", Integer32Value(), &CheckpointSpec::replicate, "Copies at other sites."),
           &J::checkpoint, "Checkpoints.")
      .Map("replan",
           Schema<ReplanSpec>()
               .Key("drift", RatioValue(), &ReplanSpec::drift, "Change of a link or stage that calls for a new plan.")
               .Key("min_gain", RatioValue(), &ReplanSpec::min_gain, "Least gain for which a new plan is taken.")
               .Key("cooldown", IntegerValue(), &ReplanSpec::cooldown, "Iterations between two new plans.")
               .Key("allow_numeric_change", BooleanValue(), &ReplanSpec::allow_numeric_change,
                    "Whether a new plan may change the micro-batch size."),
           &J::replan, "Planning again while running.");
}

Schema<JobFile> JobSchema(const std::string& folder) {
  using J = JobFile;
  return Schema<J>()
      .Key("apiVersion", ChoiceValue<std::string>({{"geopipe/v1", "geopipe/v1"}}), &J::api_version, "geopipe/v1.",
           Need::kRequired)
      .Key("kind", ChoiceValue<std::string>({{"TrainingJob", "TrainingJob"}}), &J::kind, "TrainingJob.",
           Need::kRequired)
      .Group("metadata",
             Schema<J>().Key("name", StringValue(), &J::name, "Lower-case letters, digits, '-' and '.'; at most 63.",
                             Need::kRequired),
             "About the job.", Need::kRequired)
      .Group("spec", SpecSchema(folder), "The job.", Need::kRequired);
}

absl::Status CheckJobName(const YamlDocument& document, const std::string& name) {
  constexpr size_t kMaxName = 63;
  const bool known = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos;
  if (!name.empty() && name.size() <= kMaxName && known && name.front() != '-' && name.front() != '.') {
    return absl::OkStatus();
  }
  return AttributeTo(document, "metadata.name",
                     absl::InvalidArgumentError(fmt::format(
                         "'{}' is not a name; use lower-case letters, digits, '-' and '.', beginning with a letter or "
                         "digit, at most {}",
                         name, kMaxName)));
}

// Calls visit(key, given optional, member of the model) for every key of a model.
template <class Visit>
void VisitModelKeys(const ModelFile& file, ModelSpec& model, Visit visit) {
  visit("hidden_size", file.hidden_size, model.hidden_size);
  visit("intermediate_size", file.intermediate_size, model.intermediate_size);
  visit("num_hidden_layers", file.num_hidden_layers, model.num_hidden_layers);
  visit("num_attention_heads", file.num_attention_heads, model.num_attention_heads);
  visit("num_key_value_heads", file.num_key_value_heads, model.num_key_value_heads);
  visit("vocab_size", file.vocab_size, model.vocab_size);
  visit("max_position_embeddings", file.max_position_embeddings, model.max_position_embeddings);
  visit("rope_theta", file.rope_theta, model.rope_theta);
  visit("rms_norm_eps", file.rms_norm_eps, model.rms_norm_eps);
  visit("tie_word_embeddings", file.tie_word_embeddings, model.tie_word_embeddings);
}

absl::StatusOr<ModelSpec> ModelFromHf(const YamlDocument& document, const ModelFile& file) {
  absl::StatusOr<ModelSpec> model = ReadHfConfig(file.init_from);
  if (!model.ok()) {
    return AttributeTo(document, "spec.model.init_from", model.status());
  }
  absl::Status status;
  VisitModelKeys(file, *model, [&](std::string_view key, const auto& given, const auto& value) {
    if (status.ok() && given.has_value() && *given != value) {
      status =
          AttributeTo(document, fmt::format("spec.model.{}", key),
                      absl::InvalidArgumentError(fmt::format("{} contradicts {} in {}/config.json; leave the key out",
                                                             *given, value, file.init_from)));
    }
  });
  GP_RETURN_IF_ERROR(status);
  return model;
}

absl::StatusOr<ModelSpec> ResolveModel(const YamlDocument& document, const ModelFile& file) {
  if (!file.preset.empty() && !file.init_from.empty()) {
    return AttributeTo(
        document, "spec.model.init_from",
        absl::InvalidArgumentError("given beside preset; init_from brings its own config.json, keep one"));
  }
  if (!file.init_from.empty()) {
    return ModelFromHf(document, file);
  }
  ModelSpec model;
  if (!file.preset.empty()) {
    absl::StatusOr<ModelSpec> preset = ModelPreset(file.preset);
    if (!preset.ok()) {
      return AttributeToKey(document, "spec.", preset.status());
    }
    model = *preset;
  } else {
    model.max_position_embeddings = 2048;
    model.num_key_value_heads = file.num_attention_heads.value_or(0);
    const std::array<std::pair<std::string_view, bool>, 5> required{
        {{"hidden_size", file.hidden_size.has_value()},
         {"intermediate_size", file.intermediate_size.has_value()},
         {"num_hidden_layers", file.num_hidden_layers.has_value()},
         {"num_attention_heads", file.num_attention_heads.has_value()},
         {"vocab_size", file.vocab_size.has_value()}}};
    for (const auto& [key, given] : required) {
      if (!given) {
        return AttributeTo(document, fmt::format("spec.model.{}", key),
                           absl::InvalidArgumentError("missing; give it, or a preset, or init_from"));
      }
    }
  }
  VisitModelKeys(file, model, [](std::string_view, const auto& given, auto& value) { value = given.value_or(value); });
  GP_RETURN_IF_ERROR(AttributeToKey(document, "spec.", ValidateModel(model)));
  return model;
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view file,
                                     const std::filesystem::path& folder) {
  GP_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, file));
  GP_ASSIGN_OR_RETURN(JobFile given, JobSchema(folder.string()).Read(document));
  GP_RETURN_IF_ERROR(CheckJobName(document, given.name));
  JobSpec job;
  GP_ASSIGN_OR_RETURN(job.model, ResolveModel(document, given.model));
  if (given.data.paths.empty()) {
    return AttributeTo(document, "spec.data.path", absl::InvalidArgumentError("empty; name at least one file"));
  }
  job.name = std::move(given.name);
  job.init_from = std::move(given.model.init_from);
  job.data = std::move(given.data);
  job.training = given.training;
  job.precision = given.precision;
  job.parallelism = given.parallelism;
  job.search = std::move(given.search);
  if (job.search.sequence_length.empty()) {
    job.search.sequence_length = {job.model.max_position_embeddings};
  }
  job.placement = std::move(given.placement);
  job.checkpoint = std::move(given.checkpoint);
  job.replan = given.replan;
  GP_RETURN_IF_ERROR(AttributeToKey(document, "spec.", ValidateJob(job)));
  return job;
}

absl::StatusOr<JobSpec> ReadJobFile(const std::filesystem::path& path) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) {
    return ErrnoStatus(error.value(), fmt::format("cannot resolve {}", path.string()));
  }
  return ParseJobFile(text, path.string(), absolute.parent_path());
}

std::string ExplainJob() {
  return "A job file. Quantities carry units (20ms, 400Gbps, 64GiB, 15%); relative paths are relative to the "
         "file.\n\n" +
         JobSchema("").Reference();
}

}  // namespace geopipe
