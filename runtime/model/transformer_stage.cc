#include "runtime/model/transformer_stage.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "runtime/base/clock.h"
#include "runtime/model/adamw.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

constexpr auto kWorkspace = MemoryCategory::kWorkspace;
constexpr auto kTransport = MemoryCategory::kTransport;

absl::Status CheckOptions(const TransformerStageOptions& options) {
  GP_CHECK(options.micro_batch_size >= 1 && options.sequence_length >= 1 && options.micro_batches >= 1);
  GP_CHECK(options.layers.count() >= 1 || options.layers.has_embedding || options.layers.has_head);
  GP_RETURN_IF_ERROR(ValidateModel(options.model));
  const int64_t tokens = options.micro_batches * options.micro_batch_size * options.sequence_length;
  if (tokens != options.training.tokens_per_iteration) {
    return absl::InvalidArgumentError(fmt::format(
        "{} micro-batches of {} samples of {} tokens make {} tokens, but training.tokens_per_iteration is {}",
        options.micro_batches, options.micro_batch_size, options.sequence_length, tokens,
        options.training.tokens_per_iteration));
  }
  if (options.sequence_length > options.model.max_position_embeddings) {
    return absl::InvalidArgumentError(fmt::format("sequence length {} exceeds model.max_position_embeddings {}",
                                                  options.sequence_length, options.model.max_position_embeddings));
  }
  return absl::OkStatus();
}

// `function` of the angles of position p and pair j: p * theta^(-2j / head_dim), in fp64.
absl::StatusOr<Tensor> RopeValues(const StageContext& context, double (*function)(double)) {
  const int64_t half = context.model.head_dim() / 2;
  GP_ASSIGN_OR_RETURN(Tensor values,
                      Tensor::Create(*context.allocator, kWorkspace, DType::kFp32, {context.sequence, half}));
  GP_RETURN_IF_ERROR(FillFromHost(values, [&](const Tensor& host) {
    for (int64_t j = 0; j < half; ++j) {
      const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(context.model.head_dim());
      const double frequency = std::pow(context.model.rope_theta, exponent);
      for (int64_t position = 0; position < context.sequence; ++position) {
        host.fp32()[position * half + j] = static_cast<float>(function(static_cast<double>(position) * frequency));
      }
    }
    return absl::OkStatus();
  }));
  return values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerStage>> TransformerStage::Create(const TransformerStageOptions& options,
                                                                           Allocator& allocator, Backend& backend,
                                                                           TokenSource* tokens, WeightSource& weights) {
  GP_RETURN_IF_ERROR(CheckOptions(options));
  GP_CHECK(tokens != nullptr || !(options.layers.has_embedding || options.layers.has_head), "an end without tokens");
  StageContext context;
  context.model = options.model;
  context.batch = options.micro_batch_size;
  context.sequence = options.sequence_length;
  context.allocator = &allocator;
  context.backend = &backend;
  GP_ASSIGN_OR_RETURN(context.rope_cosine, RopeValues(context, std::cos));
  GP_ASSIGN_OR_RETURN(context.rope_sine, RopeValues(context, std::sin));
  GP_ASSIGN_OR_RETURN(ParameterSet parameters, ParameterSet::Create(ParameterTensors(options.model, options.layers),
                                                                    weights, allocator, backend));
  std::unique_ptr<TransformerStage> stage(
      new TransformerStage(options, tokens, std::move(context), std::move(parameters)));
  GP_RETURN_IF_ERROR(stage->AllocateOwnBuffers());
  return stage;
}

TransformerStage::TransformerStage(const TransformerStageOptions& options, TokenSource* tokens, StageContext context,
                                   ParameterSet parameters)
    : options_(options),
      tokens_(tokens),
      context_(std::move(context)),
      parameters_(std::move(parameters)),
      scalar_memory_(ScalarIndex(ScalarKind::kGradient, std::ssize(parameters_.all())) * ByteSize(DType::kFp64),
                     context_.allocator->device()),
      saved_(options.micro_batches) {
  for (int64_t layer = options_.layers.first; layer <= options_.layers.last; ++layer) {
    blocks_.push_back(BlockParameters::Of(parameters_, layer));
  }
  embedding_ = parameters_.Find("model.embed_tokens.weight");
  if (is_last()) {
    final_norm_ = parameters_.Find("model.norm.weight");
    head_ = tied() ? embedding_ : parameters_.Find("lm_head.weight");
  }
}

absl::Status TransformerStage::AllocateOwnBuffers() {
  if (is_first() && is_last() && tied()) {
    GP_ASSIGN_OR_RETURN(own_head_gradient_, Tensor::Create(*context_.allocator, MemoryCategory::kGradients,
                                                           DType::kFp32, embedding_->spec.shape));
  }
  if (is_first() != is_last()) {
    GP_ASSIGN_OR_RETURN(unused_tokens_,
                        Tensor::Create(context_.allocator->staging(), kWorkspace, DType::kInt32, {context_.tokens()}));
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
  tied_gradient_joined_ = false;
  for (Parameter& parameter : parameters_.all()) {
    GP_RETURN_IF_ERROR(context_.backend->Zero(parameter.gradient));
  }
  if (shares_embedding() && tied_message_.empty()) {
    GP_ASSIGN_OR_RETURN(tied_message_,
                        Tensor::Create(*context_.allocator, kTransport, DType::kFp32, embedding_->spec.shape));
  }
  return own_head_gradient_.empty() ? absl::OkStatus() : context_.backend->Zero(own_head_gradient_);
}

// What another stage sends is looked at before it is used: its worker may run another job file.
absl::Status TransformerStage::CheckMessage(std::string_view what, const Tensor& message) const {
  const int64_t elements = context_.tokens() * options_.model.hidden_size;
  if (message.empty() || (message.dtype() == DType::kFp32 && message.elements() == elements)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      fmt::format("the {} that came has {} elements, this stage needs {} in fp32; do all agents "
                  "run the same version?",
                  what, message.elements(), elements));
}

absl::StatusOr<Timed<Tensor>> TransformerStage::Forward(int32_t micro_batch, Timed<Tensor> timed) {
  const int64_t begun_ns = Clock::Real().NowNs();
  Tensor input = std::move(timed.value);
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kEmpty, "forward of micro-batch {} twice", micro_batch);
  GP_CHECK(input.empty() == is_first());
  GP_RETURN_IF_ERROR(CheckMessage("activation", input));
  GP_RETURN_IF_ERROR(ReadTokens(micro_batch, saved));
  Tensor x = std::move(input);
  if (is_first()) {
    GP_ASSIGN_OR_RETURN(x, EmbeddingForward(saved));
  } else {
    GP_RETURN_IF_ERROR(context_.backend->SumOfSquares(x, Scalar(ScalarKind::kInput, micro_batch)));
    x.SetCategory(MemoryCategory::kActivations);
  }
  saved.blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool leaves = i + 1 == blocks_.size() && !is_last();
    GP_ASSIGN_OR_RETURN(x, BlockForward(context_, blocks_[i], std::move(x),
                                        leaves ? kTransport : MemoryCategory::kActivations, saved.blocks[i]));
  }
  if (is_last()) {
    GP_RETURN_IF_ERROR(HeadForward(micro_batch, std::move(x), saved));
    x = Tensor();
  } else {
    GP_RETURN_IF_ERROR(context_.backend->SumOfSquares(x, Scalar(ScalarKind::kOutput, micro_batch)));
  }
  saved.phase = Phase::kForwardDone;
  return Timed<Tensor>{.value = std::move(x), .ready = Recorded(begun_ns)};
}

absl::StatusOr<Timed<Tensor>> TransformerStage::BackwardInput(int32_t micro_batch, Timed<Tensor> timed) {
  const int64_t begun_ns = Clock::Real().NowNs();
  Tensor grad_output = std::move(timed.value);
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kForwardDone, "input gradient of micro-batch {} without its forward", micro_batch);
  GP_CHECK(grad_output.empty() == is_last());
  GP_RETURN_IF_ERROR(CheckMessage("gradient", grad_output));
  Tensor gradient = std::move(grad_output);
  if (is_last()) {
    GP_ASSIGN_OR_RETURN(gradient, HeadBackwardInput(saved));
  } else {
    gradient.SetCategory(kWorkspace);
  }
  for (size_t i = blocks_.size(); i-- > 0;) {
    GP_ASSIGN_OR_RETURN(gradient, BlockBackwardInput(context_, blocks_[i], std::move(gradient), saved.blocks[i]));
  }
  if (is_first()) {
    saved.grad_embedded = std::move(gradient);
    saved.grad_embedded.SetCategory(MemoryCategory::kActivations);
    gradient = Tensor();
  } else {
    gradient.SetCategory(kTransport);
  }
  if (!saved.blocks.empty()) {
    saved.blocks.back().grad_output.SetCategory(MemoryCategory::kActivations);  // from here it waits for W
  }
  saved.phase = Phase::kInputGradDone;
  return Timed<Tensor>{.value = std::move(gradient), .ready = Recorded(begun_ns)};
}

absl::StatusOr<Completion> TransformerStage::BackwardWeight(int32_t micro_batch, int64_t) {
  const int64_t begun_ns = Clock::Real().NowNs();
  MicroBatch& saved = saved_.at(micro_batch);
  GP_CHECK(saved.phase == Phase::kInputGradDone, "weight gradient of micro-batch {} without its input gradient",
           micro_batch);
  if (is_last()) {
    GP_RETURN_IF_ERROR(HeadBackwardWeight(saved));
  }
  for (size_t i = blocks_.size(); i-- > 0;) {
    GP_RETURN_IF_ERROR(BlockBackwardWeight(context_, blocks_[i], std::move(saved.blocks[i])));
  }
  if (is_first()) {
    GP_RETURN_IF_ERROR(
        context_.backend->EmbeddingGrad(saved.inputs, ViewOf(saved.grad_embedded), ViewOf(embedding_->gradient)));
  }
  saved = MicroBatch();
  return Recorded(begun_ns);
}

absl::Status TransformerStage::JoinOwnTiedGradients() {
  if (own_head_gradient_.empty() || tied_gradient_joined_) {
    return absl::OkStatus();
  }
  tied_gradient_joined_ = true;
  return context_.backend->Axpy(1.0, own_head_gradient_, embedding_->gradient);
}

absl::Status TransformerStage::AddTiedGradient(Tensor other) {
  GP_CHECK(shares_embedding() && !tied_gradient_joined_);
  if (other.dtype() != DType::kFp32 || other.elements() != embedding_->gradient.elements()) {
    return absl::DataLossError(fmt::format("the tied gradient that came has {} elements, the embedding has {}",
                                           other.elements(), embedding_->gradient.elements()));
  }
  tied_gradient_joined_ = true;
  // One rounding of embedding use + head use; addition commutes, so both ends hold the same bits.
  return context_.backend->Axpy(1.0, other, embedding_->gradient);
}

absl::StatusOr<Timed<ScalarReader>> TransformerStage::ReadScalars(bool norm_terms) {
  GP_RETURN_IF_ERROR(JoinOwnTiedGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "scalars before AddTiedGradient");
  const std::span<const Parameter> parameters = parameters_.all();
  for (int64_t i = 0; norm_terms && i < std::ssize(parameters); ++i) {
    GP_RETURN_IF_ERROR(context_.backend->SumOfSquares(parameters[i].gradient, Scalar(ScalarKind::kGradient, i)));
  }
  GP_ASSIGN_OR_RETURN(Timed<Tensor> staged, StagedCopy(scalars_));
  // Shared because functions are copied.
  return Timed<ScalarReader>{[this, norm_terms, copy = std::make_shared<const Tensor>(std::move(staged.value))] {
                               return ScalarsIn(copy->empty() ? scalars_ : *copy, norm_terms);
                             },
                             staged.ready};
}

IterationScalars TransformerStage::ScalarsIn(const Tensor& host, bool norm_terms) {
  const auto value = [&](ScalarKind kind, int64_t index) { return host.fp64()[ScalarIndex(kind, index)]; };
  IterationScalars scalars;
  double loss = 0;
  bool broken = false;  // what came in
  for (int32_t i = 0; i < options_.micro_batches; ++i) {
    broken = broken || (!is_first() && !std::isfinite(value(ScalarKind::kInput, i)));
    if (is_last()) {
      loss += value(ScalarKind::kLoss, i);
    } else if (!broken && !scalars.not_finite.has_value() && !std::isfinite(value(ScalarKind::kOutput, i))) {
      scalars.not_finite = i;
    }
  }
  if (is_last() && !broken) {
    scalars.loss = loss / static_cast<double>(options_.training.tokens_per_iteration);
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
  const int64_t begun_ns = Clock::Real().NowNs();
  GP_RETURN_IF_ERROR(JoinOwnTiedGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "update before AddTiedGradient");
  for (Parameter& parameter : parameters_.all()) {
    GP_RETURN_IF_ERROR(UpdateParameter(options_.training, iteration, grad_norm, *context_.backend, parameter));
  }
  return Recorded(begun_ns);
}

void TransformerStage::AbandonIteration() {
  for (MicroBatch& saved : saved_) {
    saved = MicroBatch();
  }
  tied_message_ = Tensor();
}

}  // namespace geopipe
