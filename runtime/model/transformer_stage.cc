#include "runtime/model/transformer_stage.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

constexpr auto kWorkspace = MemoryCategory::kWorkspace;
constexpr auto kTransport = MemoryCategory::kTransport;

absl::Status CheckOptions(const TransformerStageOptions& options) {
  GP_CHECK(options.micro_batch_size >= 1 && options.sequence_length >= 1 && options.micro_batches >= 1);
  GP_CHECK(options.layers.count() >= 1 || options.layers.has_embedding || options.layers.has_head);
  GP_RETURN_IF_ERROR(ValidateModel(options.model));
  const ParameterSharding& sharding = options.sharding;
  GP_CHECK(options.model.num_attention_heads % sharding.tensor == 0 &&
               options.model.vocab_rows() % sharding.tensor == 0 &&
               options.model.intermediate_size % sharding.tensor == 0,
           "{} tensor ranks", sharding.tensor);
  const int64_t tokens = sharding.data * options.micro_batches * options.micro_batch_size * options.sequence_length;
  if (tokens != options.training.tokens_per_iteration) {
    return absl::InvalidArgumentError(
        fmt::format("{} replicas of {} micro-batches of {} samples of {} tokens make {} tokens, but "
                    "training.tokens_per_iteration is {}",
                    sharding.data, options.micro_batches, options.micro_batch_size, options.sequence_length, tokens,
                    options.training.tokens_per_iteration));
  }
  if (options.sequence_length > options.model.max_position_embeddings) {
    return absl::InvalidArgumentError(fmt::format("sequence length {} exceeds model.max_position_embeddings {}",
                                                  options.sequence_length, options.model.max_position_embeddings));
  }
  return absl::OkStatus();
}

// `function` of the angles of position p and pair j: p * RopeFrequency, in fp64.
absl::StatusOr<Tensor> RopeValues(const StageContext& context, double (*function)(double)) {
  const int64_t half = context.model.head_dim() / 2;
  GP_ASSIGN_OR_RETURN(Tensor values,
                      Tensor::Create(*context.allocator, kWorkspace, DType::kFp32, {context.sequence, half}));
  GP_RETURN_IF_ERROR(FillFromHost(values, [&](const Tensor& host) {
    for (int64_t j = 0; j < half; ++j) {
      const double frequency = RopeFrequency(context.model, j);
      for (int64_t position = 0; position < context.sequence; ++position) {
        host.fp32()[position * half + j] = static_cast<float>(function(static_cast<double>(position) * frequency));
      }
    }
    return absl::OkStatus();
  }));
  return values;
}

// values = their sum over the group, unless there is none.
absl::Status SumOver(Communicator* group, const Tensor& values) {
  if (group == nullptr) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(const Completion done, group->AllReduce(ReduceOp::kSum, ElementsOf(values), ElementsOf(values)));
  return group->Join(done);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerStage>> TransformerStage::Create(const TransformerStageOptions& options,
                                                                           Allocator& allocator, Backend& backend,
                                                                           TokenSource* tokens, WeightSource& weights,
                                                                           SharedRooms* rooms,
                                                                           TokenSource* validation) {
  GP_RETURN_IF_ERROR(CheckOptions(options));
  GP_CHECK(tokens != nullptr ||
               !(options.layers.has_embedding || options.layers.has_head || options.document_end.has_value()),
           "a stage without its tokens");
  StageContext context;
  context.model = options.model;
  context.sharding = options.sharding;
  context.recompute = options.recompute;
  context.batch = options.micro_batch_size;
  context.sequence = options.sequence_length;
  context.allocator = &allocator;
  context.backend = &backend;
  GP_ASSIGN_OR_RETURN(context.rope_cosine, RopeValues(context, std::cos));
  GP_ASSIGN_OR_RETURN(context.rope_sine, RopeValues(context, std::sin));
  GP_ASSIGN_OR_RETURN(ParameterSet parameters,
                      ParameterSet::Create(ParameterBuckets(options.model, options.layers), options.sharding, weights,
                                           allocator, backend, rooms));
  std::unique_ptr<TransformerStage> stage(
      new TransformerStage(options, tokens, validation, std::move(context), std::move(parameters)));
  GP_RETURN_IF_ERROR(stage->AllocateOwnBuffers());
  return stage;
}

TransformerStage::TransformerStage(const TransformerStageOptions& options, TokenSource* tokens, TokenSource* validation,
                                   StageContext context, ParameterSet parameters)
    : options_(options),
      tokens_(tokens),
      validation_(validation),
      context_(std::move(context)),
      parameters_(std::move(parameters)),
      scalar_memory_(ScalarIndex(ScalarKind::kGradient, std::ssize(parameters_.all())) * ByteSize(DType::kFp64),
                     context_.allocator->device()),
      saved_(options.micro_batches) {
  if (is_first()) {
    embedding_bucket_ = parameters_.BucketOf(BucketKind::kEmbedding);
    order_.push_back(embedding_bucket_);
  }
  for (int64_t layer = options_.layers.first; layer <= options_.layers.last; ++layer) {
    blocks_.push_back(BlockParameters::Of(parameters_, layer));
    order_.push_back(blocks_.back().bucket);
  }
  embedding_ = parameters_.Find("model.embed_tokens.weight");
  if (is_last()) {
    final_norm_ = parameters_.Find("model.norm.weight");
    head_ = tied() ? embedding_ : parameters_.Find("lm_head.weight");
    head_bucket_ = tied() && is_first() ? embedding_bucket_ : parameters_.BucketOf(BucketKind::kHead);
    order_.push_back(head_bucket_);
  }
}

absl::Status TransformerStage::AllocateOwnBuffers() {
  const auto make = [this] {
    return Tensor::Create(context_.allocator->staging(), kWorkspace, DType::kInt32, {context_.tokens()});
  };
  if (reads_tokens() && !is_first()) {
    GP_ASSIGN_OR_RETURN(unused_inputs_, make());
  }
  if (reads_tokens() && !is_last()) {
    GP_ASSIGN_OR_RETURN(unused_targets_, make());
  }
  if (reads_tokens() && context_.allocator->space() == MemorySpace::kDevice) {
    // The host may have read the tokens of all micro-batches before the device has taken the first.
    const int64_t tensors = (is_first() ? 1 : 0) + (is_last() ? 1 : 0) + (options_.document_end.has_value() ? 1 : 0);
    GP_ASSIGN_OR_RETURN(ready_tokens_,
                        context_.allocator->staging().KeepReady(context_.tokens() * ByteSize(DType::kInt32),
                                                                tensors * options_.micro_batches));
  }
  GP_ASSIGN_OR_RETURN(scalars_, Tensor::Create(scalar_memory_, kWorkspace, DType::kFp64,
                                               {ScalarIndex(ScalarKind::kGradient, std::ssize(parameters_.all()))}));
  return absl::OkStatus();
}

absl::Status TransformerStage::BeginIteration(int64_t iteration) {
  for (const MicroBatch& saved : saved_) {
    GP_CHECK(saved.phase == Phase::kEmpty, "iteration {} begins with micro-batches in flight", iteration);
  }
  iteration_ = iteration;
  gradients_finished_ = false;
  tied_gradient_joined_ = false;
  if (shares_embedding() && tied_message_.empty()) {
    const int64_t elements = parameters_.GradientShare(is_first() ? embedding_bucket_ : head_bucket_).elements();
    GP_ASSIGN_OR_RETURN(tied_message_, Tensor::Create(*context_.allocator, kTransport, DType::kFp32, {elements}));
  }
  return parameters_.BeginIteration();
}

absl::Status TransformerStage::UseGroups(const RankGroups& groups) {
  context_.groups = groups;
  return parameters_.UseGroups(groups);
}

absl::Status TransformerStage::BeginDryRun() {
  const ParameterSharding& sharding = options_.sharding;
  dry_ = true;
  context_.backend->RunDry(true);
  idle_groups_ = {IdleCommunicator(static_cast<int32_t>(sharding.tensor_rank), static_cast<int32_t>(sharding.tensor)),
                  IdleCommunicator(0, 1),
                  IdleCommunicator(static_cast<int32_t>(sharding.data_rank), static_cast<int32_t>(sharding.data))};
  return UseGroups({.tensor = sharding.tensor > 1 ? &idle_groups_[0] : nullptr,
                    .key_value = sharding.tensor > options_.model.num_key_value_heads ? &idle_groups_[1] : nullptr,
                    .data = sharding.data > 1 ? &idle_groups_[2] : nullptr});
}

void TransformerStage::EndDryRun() {
  AbandonIteration();
  context_.groups = {};
  parameters_.LeaveGroups();
  idle_groups_.clear();
  context_.backend->RunDry(false);
  dry_ = false;
}

absl::StatusOr<Tensor> TransformerStage::NewMessage() const {
  return Tensor::Create(*context_.allocator, kTransport, context_.dtype(),
                        {context_.message_elements() / context_.hidden(), context_.hidden()});
}

absl::Status TransformerStage::UseWeights(size_t place, bool backward) {
  std::optional<size_t> next;
  if (backward ? place > 0 : place + 1 < order_.size()) {
    next = order_[backward ? place - 1 : place + 1];
  }
  return parameters_.Use(order_[place], next);
}

// Checks a message of another stage before use: its worker may run another job file.
absl::Status TransformerStage::CheckMessage(std::string_view what, const Tensor& message) const {
  const int64_t elements = context_.message_elements();
  if (message.empty() || (message.dtype() == context_.dtype() && message.elements() == elements)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      fmt::format("the {} that came has {} elements of {}, this stage needs {} of {}; do all agents run the same "
                  "version?",
                  what, message.elements(), DTypeName(message.dtype()), elements, DTypeName(context_.dtype())));
}

absl::StatusOr<Mark> TransformerStage::Begun(const Completion& input) const {
  GP_RETURN_IF_ERROR(device().After(Queue::kCompute, input));
  return device().Begin(Queue::kCompute);
}

absl::StatusOr<Timed<Tensor>> TransformerStage::Forward(int32_t micro_batch, Timed<Tensor> timed) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun(timed.ready));
  Tensor input = std::move(timed.value);
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kEmpty, "forward of micro-batch {} twice", micro_batch);
  GP_CHECK(input.empty() == is_first());
  GP_RETURN_IF_ERROR(CheckMessage("activation", input));
  GP_RETURN_IF_ERROR(ReadTokens(tokens_, iteration_, micro_batch, saved));
  if (!is_first()) {
    GP_RETURN_IF_ERROR(context_.backend->SumOfSquares(ViewOf(input), Scalar(ScalarKind::kInput, micro_batch)));
  }
  GP_ASSIGN_OR_RETURN(Tensor x, RunForward(micro_batch, Purpose::kTraining, std::move(input), saved));
  if (!is_last()) {
    GP_RETURN_IF_ERROR(context_.backend->SumOfSquares(ViewOf(x), Scalar(ScalarKind::kOutput, micro_batch)));
  }
  saved.phase = Phase::kForwardDone;
  return Timed<Tensor>{.value = std::move(x), .ready = Recorded(begun)};
}

absl::StatusOr<Tensor> TransformerStage::RunForward(int32_t micro_batch, Purpose purpose, Tensor input,
                                                    MicroBatch& saved) {
  Tensor x;
  if (is_first()) {
    GP_RETURN_IF_ERROR(UseWeights(0, /*backward=*/false));
    GP_ASSIGN_OR_RETURN(x, EmbeddingForward(saved));
  } else {
    GP_ASSIGN_OR_RETURN(x, context_.FromMessage(std::move(input), MemoryCategory::kActivations));
  }
  GP_ASSIGN_OR_RETURN(x, BlocksForward(purpose, std::move(x), saved));
  if (!is_last()) {
    return context_.ToMessage(std::move(x));
  }
  GP_RETURN_IF_ERROR(UseWeights(order_.size() - 1, /*backward=*/false));
  GP_RETURN_IF_ERROR(HeadForward(micro_batch, purpose, std::move(x), saved));
  return Tensor();
}

absl::StatusOr<Tensor> TransformerStage::BlocksForward(Purpose purpose, Tensor x, MicroBatch& saved) {
  // The output leaves as a message in place; where it is cut to one, it lasts no longer than the cut.
  const MemoryCategory leaving = context_.cuts_messages() ? kWorkspace : kTransport;
  saved.blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool leaves = i + 1 == blocks_.size() && !is_last();
    saved.blocks[i].starts =
        saved.starts.empty() ? VectorView<const int32_t>() : VectorView<const int32_t>(saved.starts);
    GP_RETURN_IF_ERROR(UseWeights(first_block() + i, /*backward=*/false));
    GP_ASSIGN_OR_RETURN(x, BlockForward(context_, blocks_[i], std::move(x),
                                        leaves ? leaving : MemoryCategory::kActivations, saved.blocks[i]));
    if (purpose == Purpose::kEvaluation) {
      saved.blocks[i] = SavedBlock();
    }
  }
  return x;
}

absl::StatusOr<Tensor> TransformerStage::BeginBackward(int32_t micro_batch, Tensor grad_output) {
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kForwardDone, "backward of micro-batch {} without its forward", micro_batch);
  GP_CHECK(grad_output.empty() == is_last());
  GP_RETURN_IF_ERROR(CheckMessage("gradient", grad_output));
  if (is_last()) {
    GP_RETURN_IF_ERROR(UseWeights(order_.size() - 1, /*backward=*/true));
    return HeadBackwardInput(saved);
  }
  return context_.FromMessage(std::move(grad_output), context_.cuts_messages() ? kWorkspace : kTransport);
}

absl::StatusOr<Tensor> TransformerStage::LayerInputGrad(size_t layer, Tensor gradient, MicroBatch& saved) {
  GP_RETURN_IF_ERROR(UseWeights(first_block() + layer, /*backward=*/true));
  return BlockBackwardInput(context_, blocks_[layer], std::move(gradient), saved.blocks[layer]);
}

// Returns the message for the stage before; on the first stage keeps the gradient for the embedding's W instead.
absl::StatusOr<Tensor> TransformerStage::EndInputGrad(Tensor gradient, MicroBatch& saved) {
  saved.starts = Tensor();
  if (!is_first()) {
    return context_.ToMessage(std::move(gradient));
  }
  GP_ASSIGN_OR_RETURN(saved.grad_embedded, context_.Gathered(std::move(gradient), MemoryCategory::kActivations));
  saved.grad_embedded.SetCategory(MemoryCategory::kActivations);
  return Tensor();
}

absl::Status TransformerStage::HeadWeightGrad(int32_t micro_batch) {
  const auto which = tied() && is_first() ? Accumulator::kTiedHead : Accumulator::kOwn;
  MicroBatch& saved = saved_.at(micro_batch);
  GP_ASSIGN_OR_RETURN(const bool adds, parameters_.BeginGradients(head_bucket_, which));
  GP_RETURN_IF_ERROR(HeadBackwardWeight(saved, adds));
  saved.head_input = Tensor();
  saved.grad_logits = Tensor();
  return parameters_.EndGradients(head_bucket_, IsLast(micro_batch), which);
}

absl::Status TransformerStage::LayerWeightGrad(size_t layer, int32_t micro_batch) {
  const size_t bucket = blocks_[layer].bucket;
  GP_ASSIGN_OR_RETURN(const bool adds, parameters_.BeginGradients(bucket));
  GP_RETURN_IF_ERROR(
      BlockBackwardWeight(context_, blocks_[layer], std::move(saved_.at(micro_batch).blocks[layer]), adds));
  return parameters_.EndGradients(bucket, IsLast(micro_batch));
}

absl::Status TransformerStage::EmbeddingWeightGrad(int32_t micro_batch) {
  GP_RETURN_IF_ERROR(parameters_.BeginGradients(embedding_bucket_).status());
  GP_RETURN_IF_ERROR(EmbeddingBackwardWeight(saved_.at(micro_batch)));
  return parameters_.EndGradients(embedding_bucket_, IsLast(micro_batch));
}

absl::StatusOr<Timed<Tensor>> TransformerStage::BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun(grad_output.ready));
  MicroBatch& saved = saved_.at(micro_batch);
  GP_ASSIGN_OR_RETURN(Tensor gradient, BeginBackward(micro_batch, std::move(grad_output.value)));
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    GP_ASSIGN_OR_RETURN(gradient, LayerInputGrad(layer, std::move(gradient), saved));
  }
  GP_ASSIGN_OR_RETURN(gradient, EndInputGrad(std::move(gradient), saved));
  if (!saved.blocks.empty()) {
    saved.blocks.back().grad_output.SetCategory(MemoryCategory::kActivations);  // from here it waits for W
  }
  saved.phase = Phase::kInputGradDone;
  return Timed<Tensor>{.value = std::move(gradient), .ready = Recorded(begun)};
}

absl::StatusOr<Completion> TransformerStage::BackwardWeight(int32_t micro_batch, int64_t) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun());
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kInputGradDone, "weight gradient of micro-batch {} without its input gradient",
           micro_batch);
  if (is_last()) {
    GP_RETURN_IF_ERROR(HeadWeightGrad(micro_batch));
  }
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    GP_RETURN_IF_ERROR(LayerWeightGrad(layer, micro_batch));
  }
  if (is_first()) {
    GP_RETURN_IF_ERROR(EmbeddingWeightGrad(micro_batch));
  }
  saved = MicroBatch();
  return Recorded(begun);
}

absl::StatusOr<Timed<Tensor>> TransformerStage::Backward(int32_t micro_batch, Timed<Tensor> grad_output) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun(grad_output.ready));
  MicroBatch& saved = saved_.at(micro_batch);
  GP_ASSIGN_OR_RETURN(Tensor gradient, BeginBackward(micro_batch, std::move(grad_output.value)));
  if (is_last()) {
    GP_RETURN_IF_ERROR(HeadWeightGrad(micro_batch));
  }
  for (size_t layer = blocks_.size(); layer-- > 0;) {
    GP_ASSIGN_OR_RETURN(gradient, LayerInputGrad(layer, std::move(gradient), saved));
    GP_RETURN_IF_ERROR(LayerWeightGrad(layer, micro_batch));
  }
  GP_ASSIGN_OR_RETURN(gradient, EndInputGrad(std::move(gradient), saved));
  if (is_first()) {
    GP_RETURN_IF_ERROR(EmbeddingWeightGrad(micro_batch));
  }
  saved = MicroBatch();
  return Timed<Tensor>{.value = std::move(gradient), .ready = Recorded(begun)};
}

absl::Status TransformerStage::FinishGradients() {
  return std::exchange(gradients_finished_, true) ? absl::OkStatus() : parameters_.FinishGradients();
}

absl::Status TransformerStage::AddTiedGradient(Timed<Tensor> timed) {
  GP_CHECK(shares_embedding() && gradients_finished_ && !tied_gradient_joined_);
  const Tensor other = std::move(timed.value);
  GP_RETURN_IF_ERROR(device().After(Queue::kCompute, timed.ready));
  const Tensor own = parameters_.GradientShare(is_first() ? embedding_bucket_ : head_bucket_);
  if (other.dtype() != DType::kFp32 || other.elements() != own.elements()) {
    return absl::DataLossError(fmt::format("the tied gradient that came has {} elements, the embedding has {}",
                                           other.elements(), own.elements()));
  }
  tied_gradient_joined_ = true;
  // The sum embedding use + head use is rounded once; addition commutes, so both ends hold the same bits.
  return context_.backend->Axpy(1.0, other, own);
}

absl::Status TransformerStage::SumLosses() {
  return is_last()
             ? SumOver(context_.groups.data, scalars_.Part(ScalarIndex(ScalarKind::kLoss, 0), {options_.micro_batches}))
             : absl::OkStatus();
}

absl::Status TransformerStage::SumScalars(bool norm_terms) {
  GP_RETURN_IF_ERROR(SumLosses());
  if (norm_terms) {
    const Tensor terms = scalars_.Part(ScalarIndex(ScalarKind::kGradient, 0), {std::ssize(parameters_.all())});
    GP_RETURN_IF_ERROR(parameters_.SumSquares(terms));
    GP_RETURN_IF_ERROR(SumOver(context_.groups.data, terms));
    GP_RETURN_IF_ERROR(SumOver(context_.groups.tensor, terms));
  }
  return absl::OkStatus();
}

absl::StatusOr<Timed<ScalarReader>> TransformerStage::ReadScalars(bool norm_terms) {
  GP_RETURN_IF_ERROR(FinishGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "scalars before AddTiedGradient");
  GP_RETURN_IF_ERROR(SumScalars(norm_terms));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> staged, StagedCopy(scalars_));
  // The copy is shared because std::function copies its captures.
  return Timed<ScalarReader>{[this, norm_terms, copy = std::make_shared<const Tensor>(std::move(staged.value))] {
                               return ScalarsIn(copy->empty() ? scalars_ : *copy, norm_terms);
                             },
                             staged.ready};
}

double TransformerStage::SumOfLosses(const Tensor& host) const {
  double sum = 0;
  for (int32_t i = 0; i < options_.micro_batches; ++i) {
    sum += host.fp64()[ScalarIndex(ScalarKind::kLoss, i)];
  }
  return sum;
}

IterationScalars TransformerStage::ScalarsIn(const Tensor& host, bool norm_terms) {
  const auto value = [&](ScalarKind kind, int64_t index) { return host.fp64()[ScalarIndex(kind, index)]; };
  IterationScalars scalars;
  bool broken = false;  // the input is not finite
  for (int32_t i = 0; i < options_.micro_batches; ++i) {
    broken = broken || (!is_first() && !std::isfinite(value(ScalarKind::kInput, i)));
    if (!is_last() && !broken && !scalars.not_finite.has_value() && !std::isfinite(value(ScalarKind::kOutput, i))) {
      scalars.not_finite = i;
    }
  }
  if (is_last() && !broken) {
    scalars.loss = SumOfLosses(host) / static_cast<double>(options_.training.tokens_per_iteration);
  }
  const std::span<const Parameter> parameters = parameters_.all();
  for (int64_t i = 0; norm_terms && i < std::ssize(parameters); ++i) {
    if (&parameters[i] != embedding_ || is_first()) {  // the first stage accounts for a tied embedding
      scalars.norm_terms.push_back({parameters[i].spec.name, value(ScalarKind::kGradient, i)});
    }
  }
  return scalars;
}

absl::StatusOr<Completion> TransformerStage::Update(int64_t iteration, std::optional<double> grad_norm, int64_t) {
  for (const Completion& reading : std::exchange(readers_, {})) {
    GP_RETURN_IF_ERROR(device().After(Queue::kCompute, reading));
  }
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun());
  GP_RETURN_IF_ERROR(FinishGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "update before AddTiedGradient");
  GP_RETURN_IF_ERROR(parameters_.Update(options_.training, iteration, grad_norm));
  return Recorded(begun);
}

absl::Status TransformerStage::BeginEvaluation() {
  GP_CHECK(validation_ != nullptr || !reads_tokens(), "an evaluation without data");
  if (!is_last()) {
    return absl::OkStatus();
  }
  double* const losses = Scalar(ScalarKind::kLoss, 0).data;
  return context_.backend->ZeroBytes(reinterpret_cast<std::byte*>(losses),
                                     options_.micro_batches * ByteSize(DType::kFp64));
}

absl::StatusOr<Timed<Tensor>> TransformerStage::Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> timed) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun(timed.ready));
  Tensor input = std::move(timed.value);
  GP_CHECK(input.empty() == is_first());
  GP_RETURN_IF_ERROR(CheckMessage("activation", input));
  MicroBatch passing;
  GP_RETURN_IF_ERROR(ReadTokens(validation_, pass, micro_batch, passing));
  GP_ASSIGN_OR_RETURN(Tensor x, RunForward(micro_batch, Purpose::kEvaluation, std::move(input), passing));
  return Timed<Tensor>{.value = std::move(x), .ready = Recorded(begun)};
}

absl::StatusOr<Timed<LossReader>> TransformerStage::EndEvaluation(int64_t passes) {
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun());
  GP_RETURN_IF_ERROR(parameters_.EndForwards());
  if (!is_last()) {
    return Timed<LossReader>{[] { return std::nullopt; }, Recorded(begun)};
  }
  GP_RETURN_IF_ERROR(SumLosses());
  GP_ASSIGN_OR_RETURN(Timed<Tensor> staged, StagedCopy(scalars_));
  // The copy is shared as ReadScalars' is.
  return Timed<LossReader>{[this, passes, copy = std::make_shared<const Tensor>(std::move(staged.value))] {
                             const int64_t tokens = options_.training.tokens_per_iteration * passes;
                             return SumOfLosses(copy->empty() ? scalars_ : *copy) / static_cast<double>(tokens);
                           },
                           staged.ready};
}

void TransformerStage::AbandonIteration() {
  for (MicroBatch& saved : saved_) {
    saved = MicroBatch();
  }
  tied_message_ = Tensor();
  parameters_.Abandon();
}

}  // namespace geopipe
