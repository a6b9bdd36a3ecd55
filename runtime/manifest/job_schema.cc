#include "runtime/manifest/job_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Above every published model and run, and no more than the arithmetic bears: samples of all iterations, bytes of all
// layers and of a micro-batch, each times what a plan multiplies them by, stay within int64_t.
constexpr int64_t kMaxWidth = int64_t{1} << 18;  // of the residual stream
constexpr int64_t kMaxIntermediateSize = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxSequenceLength = int64_t{1} << 24;
constexpr int64_t kMaxIterations = 1'000'000'000;
constexpr int64_t kMaxTokensPerIteration = int64_t{1} << 32;
constexpr int64_t kMaxMicroBatchSize = int64_t{1} << 16;
constexpr int64_t kMaxKeptCheckpoints = 1'000'000;
constexpr int64_t kMaxEvaluations = 1'000'000'000;
constexpr int64_t kMaxEvaluationIterations = 1'000'000;
constexpr int64_t kMaxGraceNs = int64_t{24} * 3600 * 1'000'000'000;
constexpr double kMaxLearningRate = 1e30;  // absurd, and a float
constexpr double kMaxWeightDecay = 1000;
constexpr double kMaxGradClip = 1e30;
constexpr double kMaxRopeTheta = 1e15;
constexpr double kMaxRopeFactor = 1e6;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxDegree = 65'536;
constexpr size_t kMaxChoices = 64;
constexpr size_t kMaxPaths = 4096;
constexpr size_t kMaxSites = 1024;
constexpr int64_t kMaxTimeBudgetNs = int64_t{1000} * 3600 * 1'000'000'000;

template <class M>
ValueType<std::vector<M>> Different(ValueType<M> type, size_t max_count) {
  return Restricted<std::vector<M>>(ListValue(std::move(type)), fmt::format("1 to {} different values", max_count),
                                    [max_count](const std::vector<M>& values) {
                                      std::vector<M> sorted = values;
                                      std::ranges::sort(sorted);
                                      return !values.empty() && values.size() <= max_count &&
                                             std::ranges::adjacent_find(sorted) == sorted.end();
                                    });
}

// Adds a key that a file must give, with this one word.
void Constant(Schema<JobSpec>& schema, const std::string& key, const std::string& word) {
  schema.Key<std::string>(
      key, ChoiceValue<std::string>({{word, word}}), [word](const JobSpec&) { return word; },
      [](JobSpec*, const std::string&) {}, word + ".", Need::kRequired);
}

Schema<JobSpec> ModelKeys(const std::string& folder) {
  std::vector<std::pair<std::string, ModelSpec>> presets;
  for (const std::string& name : ModelPresetNames()) {
    presets.emplace_back(name, ModelPreset(name).value());
  }
  Schema<JobSpec> schema;
  // Shows nothing: the values that it stands for are written key by key.
  schema.Key<ModelSpec>(
      "preset", ChoiceValue(std::move(presets)), [](const JobSpec&) { return ModelSpec(); },
      [](JobSpec* job, ModelSpec model) { job->model = model; }, "A published model, in place of all other keys.");
  schema.Key("init_from", PathValue(folder), &JobSpec::init_from,
             "Hugging Face directory, or folder of a checkpoint, to take the model and its weights from.");
  return schema.Embed(ModelSchema(), &JobSpec::model);
}

ValueType<std::string> GivenPath(const std::string& folder) {
  ValueType<std::string> type = PathValue(folder);
  type.read = [read = std::move(type.read)](const YamlNode& node) -> absl::StatusOr<std::string> {
    GP_ASSIGN_OR_RETURN(std::string path, read(node));
    return path.empty() ? absl::StatusOr<std::string>(absl::InvalidArgumentError("is empty; name a file")) : path;
  };
  return type;
}

// Above 0 and at most `max`.
ValueType<double> PositiveUpTo(double max) {
  return Restricted<double>(NumberValue(), fmt::format("above 0 and at most {}", max),
                            [max](const double& value) { return value > 0 && value <= max; });
}

// Words of an enumeration's values, by their names in config.json.
std::vector<std::pair<std::string, ModelFamily>> FamilyWords() {
  std::vector<std::pair<std::string, ModelFamily>> words;
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    words.emplace_back(ModelFamilyName(family), family);
  }
  return words;
}

Schema<RopeScaling> RopeScalingSchema() {
  using R = RopeScaling;
  std::vector<std::pair<std::string, R::Type>> types;
  for (const R::Type type : {R::Type::kDefault, R::Type::kLinear, R::Type::kLlama3}) {
    types.emplace_back(RopeTypeName(type), type);
  }
  return Schema<R>()
      .Key("rope_type", ChoiceValue<R::Type>(types), &R::type,
           "default: as they are; linear: all are lower; llama3: low ones are.")
      .Key("factor", From(1.0, kMaxRopeFactor, NumberValue()), &R::factor, "By which frequencies are divided.")
      .Key("low_freq_factor", PositiveUpTo(kMaxRopeFactor), &R::low_freq_factor,
           "llama3: a frequency with fewer waves in the original length is low.")
      .Key("high_freq_factor", PositiveUpTo(kMaxRopeFactor), &R::high_freq_factor,
           "llama3: a frequency with more waves stays.")
      .Key("original_max_position_embeddings", From<int64_t>(1, kMaxSequenceLength, IntegerValue()),
           &R::original_max_position_embeddings, "llama3: longest sequence of the pre-training.");
}

Schema<DataSpec> DataSchema(const std::string& folder) {
  using D = DataSpec;
  return Schema<D>()
      .Key("format", ChoiceValue<DataFormat>({{"tokens", DataFormat::kTokens}, {"text", DataFormat::kText}}),
           &D::format, "tokens: flat little-endian files; text: any text files.")
      .Key("path", Different(GivenPath(folder), kMaxPaths), &D::paths,
           "Token files, in this order; or text files and globs.", Need::kRequired)
      .Key("weights",
           WordOr<std::vector<double>>("none", {}, ListValue(From(kDataWeightUnit, kMaxDataWeight, NumberValue()))),
           &D::weights, "Shares of the samples that the token files give; none: the files are read as if joined.")
      .Key("dtype", ChoiceValue<TokenDtype>({{"uint16", TokenDtype::kUint16}, {"uint32", TokenDtype::kUint32}}),
           &D::dtype, "Type of a token (format tokens).")
      .Key("shuffle", BooleanValue(), &D::shuffle, "Seeded order of samples, another in each epoch of the data.")
      .Key("tokenizer", ChoiceValue<std::string>({{"byte", "byte"}}), &D::tokenizer,
           "How text becomes tokens: 256 bytes, begin and end (format text).")
      .Key("documents", ChoiceValue<Documents>({{"packed", Documents::kPacked}, {"reset", Documents::kReset}}),
           &D::documents,
           "packed: attention sees what comes before in a sample; reset: only its own document, and all nodes read the "
           "data.")
      .Key("end_of_text", OptionalValue("none", From<int64_t>(0, kMaxVocabulary - 1, IntegerValue())), &D::end_of_text,
           "Id of the token that ends a document (documents reset, format tokens).");
}

ValueType<double> FractionValue() {
  return Restricted<double>(NumberValue(), "at least 0 and below 1",
                            [](const double& value) { return value >= 0 && value < 1; });
}

ValueType<std::pair<double, double>> BetasValue() {
  const ValueType<std::vector<double>> list = ListValue(FractionValue());
  ValueType<std::pair<double, double>> type;
  type.name = "list of 2 numbers";
  type.read = [read = list.read](const YamlNode& node) -> absl::StatusOr<std::pair<double, double>> {
    GP_ASSIGN_OR_RETURN(const std::vector<double> betas, read(node));
    if (betas.size() != 2) {
      return absl::InvalidArgumentError(fmt::format("has {} numbers; write two, like [0.9, 0.95]", betas.size()));
    }
    return std::pair(betas[0], betas[1]);
  };
  type.show = [](const std::pair<double, double>& betas) { return fmt::format("[{}, {}]", betas.first, betas.second); };
  type.sample = list.sample;
  type.range = list.range;
  return type;
}

Schema<TrainingSpec> TrainingSchema() {
  using T = TrainingSpec;
  return Schema<T>()
      .Key("iterations", From<int64_t>(1, kMaxIterations, IntegerValue()), &T::iterations, "Weight updates.",
           Need::kRequired)
      .Key("tokens_per_iteration", From<int64_t>(1, kMaxTokensPerIteration, IntegerValue()), &T::tokens_per_iteration,
           "Tokens of one update; a multiple of micro_batch_size x sequence_length x data.", Need::kRequired)
      .Key("seed", UnsignedValue(), &T::seed, "Seed of the initial weights and of the order of samples.")
      .Key("learning_rate", PositiveUpTo(kMaxLearningRate), &T::learning_rate, "Peak learning rate.")
      .Key("warmup_iterations", From<int64_t>(0, kMaxIterations, IntegerValue()), &T::warmup_iterations,
           "Linear warm-up to learning_rate.")
      .Key("min_learning_rate", OptionalValue("none", From(0.0, kMaxLearningRate, NumberValue())),
           &T::min_learning_rate, "Learning rate at the end of the cosine decay; none: constant.")
      .Key<std::pair<double, double>>(
          "betas", BetasValue(), [](const T& t) { return std::pair(t.beta1, t.beta2); },
          [](T* t, std::pair<double, double> betas) { std::tie(t->beta1, t->beta2) = betas; },
          "Decay of AdamW's moments.")
      .Key("eps", PositiveUpTo(1), &T::eps, "Epsilon of AdamW.")
      .Key("weight_decay", From(0.0, kMaxWeightDecay, NumberValue()), &T::weight_decay,
           "Decoupled, on tensors of two or more dimensions.")
      .Key("grad_clip", OptionalValue("none", PositiveUpTo(kMaxGradClip)), &T::grad_clip,
           "Maximum global gradient norm; none: no clipping (also skips the norm reduction).");
}

Schema<ParallelismSpec> ParallelismSchema() {
  using P = ParallelismSpec;
  const auto degree = [] { return WordOr<int64_t>("auto", 0, From<int64_t>(1, kMaxDegree, IntegerValue())); };
  return Schema<P>()
      .Key("tensor", degree(), &P::tensor, "Tensor-parallel degree, inside a node.")
      .Key("pipeline", degree(), &P::pipeline, "Pipeline ranks, over all sites.")
      .Key("data", degree(), &P::data, "Data-parallel degree, inside a site.")
      .Key("stages_per_rank", WordOr<int32_t>("auto", 0, From<int32_t>(1, kMaxStagesPerRank, Integer32Value())),
           &P::stages_per_rank, "Stages that each pipeline rank runs, in turns; auto: as many as are best.")
      .Key("sequence_parallel", BooleanValue(), &P::sequence_parallel,
           "Norm regions split over the tensor-parallel ranks.")
      .Key("zero_stage", OptionalValue("auto", From<int32_t>(0, 3, Integer32Value())), &P::zero_stage,
           "Model states that ZeRO divides over data-parallel ranks; auto: the best.")
      .Key("recompute",
           OptionalValue("auto", ChoiceValue<Recompute>({{"none", Recompute::kNone},
                                                         {"selective", Recompute::kSelective},
                                                         {"full", Recompute::kFull}})),
           &P::recompute, "Activations computed again in the backward pass.")
      .Key("offload", ChoiceValue<Offload>({{"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}}), &P::offload,
           "Model states kept in the host's memory; optimizer: AdamW's, which pass through the device.")
      .Key("layers", ChoiceValue<LayerSplit>({{"auto", LayerSplit::kAuto}, {"even", LayerSplit::kEven}}), &P::layers,
           "Layers of each stage; auto: balanced by time (in runs: even).");
}

Schema<SearchSpec> SearchSchema() {
  using S = SearchSpec;
  std::vector<std::pair<std::string, ScheduleKind>> schedules;
  schedules.reserve(std::size(kSchedules));
  for (const ScheduleRow& row : kSchedules) {
    schedules.emplace_back(row.name, row.kind);
  }
  return Schema<S>()
      .Key("micro_batch_size", Different(From<int64_t>(1, kMaxMicroBatchSize, IntegerValue()), kMaxChoices),
           &S::micro_batch_size, "Candidates for b.")
      .Key("sequence_length",
           Showing("[max_position_embeddings]",
                   Different(From<int64_t>(1, kMaxSequenceLength, IntegerValue()), kMaxChoices)),
           &S::sequence_length, "Candidates for s: lengths that are equivalent for the training.")
      .Key("max_delta_n", OptionalValue("auto", From<int32_t>(0, kMaxDeltaN, Integer32Value())), &S::max_delta_n,
           "Maximum number of extra forward micro-batches per crossing; auto: what memory allows.")
      .Key("schedule", ChoiceValue(std::move(schedules)), &S::schedule, "Kind of schedule; auto: the best.")
      .Key("prefer", ChoiceValue<Prefer>({{"speed", Prefer::kSpeed}, {"memory", Prefer::kMemory}}), &S::prefer,
           "Which of the plans within 3 % of the fastest: it, or the one that takes the least memory.")
      .Key("seed", UnsignedValue(), &S::seed, "Seed of the genetic search: same seed, same plan.")
      .Key("time_budget", From<int64_t>(1, kMaxTimeBudgetNs, DurationValue()), &S::time_budget_ns,
           "The search stops between generations after this.")
      .Key("max_evaluations", From<int64_t>(1, kMaxEvaluations, IntegerValue()), &S::max_evaluations,
           "The search stops after so many simulated plans.");
}

Schema<CheckpointSpec> CheckpointSchema(const std::string& folder) {
  using C = CheckpointSpec;
  return Schema<C>()
      .Key("path", PathValue(folder), &C::path,
           "Folder, the same on all nodes; the job leaves its last state there. None: no checkpoints.")
      .Key("every", From<int64_t>(0, kMaxIterations, IntegerValue()), &C::every,
           "Iterations between checkpoints; 0: only the last state, and those asked for.")
      .Key("keep", From<int64_t>(1, kMaxKeptCheckpoints, IntegerValue()), &C::keep, "Latest checkpoints that stay.")
      .Key("replicate", From<int32_t>(0, 1, Integer32Value()), &C::replicate,
           "Copies at other sites, 0 or 1: with one, a lost site costs the iterations since the last checkpoint.");
}

Schema<EvaluationSpec> EvaluationSchema(const std::string& folder) {
  using E = EvaluationSpec;
  return Schema<E>()
      .Key("every", From<int64_t>(0, kMaxIterations, IntegerValue()), &E::every,
           "Iterations between evaluations; 0: only after the last.")
      .Map("data", DataSchema(folder), &E::data, "Validation data, with the keys of data.", Need::kRequired)
      .Key("iterations", From<int64_t>(1, kMaxEvaluationIterations, IntegerValue()), &E::iterations,
           "Forward-only iterations of each, of tokens_per_iteration each: always the same samples.");
}

bool EvaluatesNothing(const EvaluationSpec& evaluation) { return evaluation.data.paths.empty(); }

Schema<ReplanSpec> ReplanSchema() {
  using R = ReplanSpec;
  return Schema<R>()
      .Key("drift", RatioValue(), &R::drift, "Change of a link or stage that calls for a new plan.")
      .Key("min_gain", RatioValue(), &R::min_gain, "Minimum gain for which a new plan is taken.")
      .Key("cooldown", From<int64_t>(0, kMaxIterations, IntegerValue()), &R::cooldown,
           "Iterations between two new plans.")
      .Key("allow_numeric_change", BooleanValue(), &R::allow_numeric_change,
           "Whether a new plan may change the micro-batch size.");
}

Schema<JobSpec> SpecSchema(const std::string& folder) {
  using J = JobSpec;
  return Schema<J>()
      .Group("model", ModelKeys(folder), "A Llama model: preset, init_from, or the keys of config.json.",
             Need::kRequired)
      .Map("data", DataSchema(folder), &J::data, "Training data.", Need::kRequired)
      .Map("training", TrainingSchema(), &J::training, "What is trained, and how.", Need::kRequired)
      .Key("precision", ChoiceValue<Precision>({{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}}), &J::precision,
           "Of activations and messages; bf16 keeps fp32 master weights.")
      .Map("parallelism", ParallelismSchema(), &J::parallelism, "Degrees of parallelism.")
      .Map("search", SearchSchema(), &J::search, "What the planner may choose from.")
      .Map("placement",
           Schema<PlacementSpec>().Key(
               "sites", WordOr<std::vector<std::string>>("auto", {}, Different(StringValue(), kMaxSites)),
               &PlacementSpec::sites, "Sites in pipeline order; auto: orders are tried."),
           &J::placement, "Where stages go.", Need::kOptional, "auto")
      .Map("checkpoint", CheckpointSchema(folder), &J::checkpoint, "Checkpoints.")
      .Map("evaluation", EvaluationSchema(folder), &J::evaluation, "Losses on data that is not trained on.",
           Need::kOptional, "none")
      .LeftOutWhere<EvaluationSpec, EvaluatesNothing>()
      .Key("recovery", ChoiceValue<Recovery>({{"checkpoint", Recovery::kCheckpoint}, {"memory", Recovery::kMemory}}),
           &J::recovery,
           "State from which a job that loses a worker resumes; memory: the last two states of each rank outlive its "
           "process.")
      .Key("on_site_loss", ChoiceValue<OnSiteLoss>({{"replan", OnSiteLoss::kReplan}, {"wait", OnSiteLoss::kWait}}),
           &J::on_site_loss,
           "When a node or site is gone; replan: the job goes on at the others, from a checkpoint that they have.")
      .Key("grace", From<int64_t>(1'000'000'000, kMaxGraceNs, DurationValue()), &J::grace_ns,
           "How long a node may be unheard of, while the job cannot go on, before it counts as gone.")
      .Map("replan", ReplanSchema(), &J::replan, "Planning again while running.")
      .Inert("this version does not plan again while a job runs");
}

}  // namespace

const Schema<ModelSpec>& ModelSchema() {
  using M = ModelSpec;
  const auto size = [](int64_t max) { return From<int64_t>(1, max, IntegerValue()); };
  const auto needed = [&](int64_t max) { return Showing("", size(max)); };
  static const auto& schema = *new Schema<M>(
      Schema<M>()
          .Key("model_type", ChoiceValue<ModelFamily>(FamilyWords()), &M::family,
               "Family: qwen2 has biases of q, k and v, qwen3 norms of each head of q and k.")
          .Key("hidden_size", needed(kMaxWidth), &M::hidden_size, "Width of the residual stream.")
          .Key("intermediate_size", needed(kMaxIntermediateSize), &M::intermediate_size, "Width of the SwiGLU MLP.")
          .Key("num_hidden_layers", needed(kMaxLayers), &M::num_hidden_layers, "Decoder layers.")
          .Key("num_attention_heads", needed(kMaxHeads), &M::num_attention_heads,
               "Query heads; must divide hidden_size, unless head_dim is given.")
          .Key("num_key_value_heads", Showing("num_attention_heads", size(kMaxHeads)), &M::num_key_value_heads,
               "Key and value heads; must divide num_attention_heads.")
          .Key("head_dim", WordOr<int64_t>("auto", 0, size(kMaxHeadDim)), &M::given_head_dim,
               "Width of a head; auto: hidden_size / num_attention_heads.")
          .Key("vocab_size", needed(kMaxVocabulary), &M::vocab_size, "Tokens of the vocabulary (byte tokenizer: 258).")
          .Key("padded_vocab_size", WordOr<int64_t>("auto", 0, size(kMaxVocabulary)), &M::padded_vocab_size,
               "Rows of embedding and head, of which those beyond vocab_size are never predicted; auto: vocab_size.")
          .Key("max_position_embeddings", size(kMaxSequenceLength), &M::max_position_embeddings,
               "Longest sequence of the model.")
          .Key("rope_theta", PositiveUpTo(kMaxRopeTheta), &M::rope_theta, "Base of the rotary embedding.")
          .Map("rope_scaling", RopeScalingSchema(), &M::rope_scaling, "Rotary frequencies for longer sequences.",
               Need::kOptional, "none")
          .Key("sliding_window", WordOr<int64_t>("none", 0, size(kMaxSequenceLength)), &M::sliding_window,
               "Tokens that a position attends to; sequences may not be longer.")
          .Key("attention_bias", BooleanValue(), &M::attention_bias,
               "Whether q, k, v and o have biases (llama, qwen3).")
          .Key("rms_norm_eps", PositiveUpTo(1), &M::rms_norm_eps, "Epsilon of RMSNorm.")
          .Key("tie_word_embeddings", BooleanValue(), &M::tie_word_embeddings,
               "Whether the head uses the embedding's weights."));
  return schema;
}

Schema<JobSpec> JobSchema(const std::string& folder) {
  const ValueType<std::string> name = Restricted<std::string>(StringValue(), std::string(kJobNameRule),
                                                              [](const std::string& text) { return IsJobName(text); });
  Schema<JobSpec> schema;
  Constant(schema, "apiVersion", "geopipe/v1");
  Constant(schema, "kind", "TrainingJob");
  return schema
      .Group("metadata", Schema<JobSpec>().Key("name", name, &JobSpec::name, "Of the job.", Need::kRequired),
             "About the job.", Need::kRequired)
      .Group("spec", SpecSchema(folder), "The job.", Need::kRequired);
}

}  // namespace geopipe
