#include "runtime/model/transformer_stage.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/memory_model.h"
#include "runtime/base/clock.h"
#include "runtime/model/adamw.h"

namespace geopipe {
namespace {

constexpr auto kWorkspace = MemoryCategory::kWorkspace;
constexpr auto kTransport = MemoryCategory::kTransport;

// Of arithmetic on this thread, which is over now.
Completion OverSince(int64_t begun_ns) { return {begun_ns, Clock::Real().NowNs()}; }

ExecutionConfig ConfigOf(const TransformerStageOptions& options) {
  return {.micro_batch_size = options.micro_batch_size,
          .sequence_length = options.sequence_length,
          .recompute = Recompute::kNone,
          .precision = options.precision};
}

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

// Angles of position p and pair j: p * theta^(-2j / head_dim), in fp64.
absl::Status FillRopeTable(StageContext& context) {
  const int64_t half = context.model.head_dim() / 2;
  const std::vector<int64_t> shape{context.sequence, half};
  GP_ASSIGN_OR_RETURN(context.rope_cosine, Tensor::Create(*context.allocator, kWorkspace, DType::kFp32, shape));
  GP_ASSIGN_OR_RETURN(context.rope_sine, Tensor::Create(*context.allocator, kWorkspace, DType::kFp32, shape));
  const std::span<float> cosine = context.rope_cosine.fp32();
  const std::span<float> sine = context.rope_sine.fp32();
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(context.model.head_dim());
    const double frequency = std::pow(context.model.rope_theta, exponent);
    for (int64_t position = 0; position < context.sequence; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * half + j] = static_cast<float>(std::cos(angle));
      sine[position * half + j] = static_cast<float>(std::sin(angle));
    }
  }
  return absl::OkStatus();
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
  GP_RETURN_IF_ERROR(FillRopeTable(context));
  GP_ASSIGN_OR_RETURN(ParameterSet parameters,
                      ParameterSet::Create(StageParameters(options.model, options.layers), weights, allocator));
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
      losses_(options.micro_batches),
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

int64_t TransformerStage::ActivationBytesPerMicroBatch() const {
  return MemoryOfStage(options_.model, options_.layers, ConfigOf(options_)).activation_bytes;
}

int64_t TransformerStage::WeightGradBytesPerMicroBatch() const {
  return MemoryOfStage(options_.model, options_.layers, ConfigOf(options_)).weight_grad_bytes;
}

absl::Status TransformerStage::AllocateOwnBuffers() {
  if (is_first() && is_last() && tied()) {
    GP_ASSIGN_OR_RETURN(own_head_gradient_, Tensor::Zeros(*context_.allocator, MemoryCategory::kGradients, DType::kFp32,
                                                          embedding_->spec.shape));
  }
  if (is_first() != is_last()) {
    GP_ASSIGN_OR_RETURN(unused_tokens_,
                        Tensor::Create(*context_.allocator, kWorkspace, DType::kInt32, {context_.tokens()}));
  }
  return absl::OkStatus();
}

absl::Status TransformerStage::BeginIteration(int64_t iteration) {
  for (const MicroBatch& saved : saved_) {
    GP_CHECK(saved.phase == Phase::kEmpty, "iteration {} begins with micro-batches in flight", iteration);
  }
  iteration_ = iteration;
  tied_gradient_joined_ = false;
  for (Parameter& parameter : parameters_.all()) {
    GP_RETURN_IF_ERROR(context_.backend->Zero(parameter.gradient.fp32()));
  }
  if (shares_embedding() && tied_message_.empty()) {
    GP_ASSIGN_OR_RETURN(tied_message_,
                        Tensor::Create(*context_.allocator, kTransport, DType::kFp32, embedding_->spec.shape));
  }
  return own_head_gradient_.empty() ? absl::OkStatus() : context_.backend->Zero(own_head_gradient_.fp32());
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
    GP_RETURN_IF_ERROR(CheckFinite(x));
  }
  saved.phase = Phase::kForwardDone;
  return Timed<Tensor>{.value = std::move(x), .ready = OverSince(begun_ns)};
}

// What is not a number here would show as a loss that is none, on another stage. One pass over the result is nothing
// beside the products that made it.
absl::Status TransformerStage::CheckFinite(const Tensor& activation) const {
  GP_ASSIGN_OR_RETURN(const double sum_of_squares, context_.backend->SumOfSquares(activation.fp32()));
  return std::isfinite(sum_of_squares)
             ? absl::OkStatus()
             : absl::OutOfRangeError(
                   "the activations it makes are not finite, and neither would the loss be; lower "
                   "training.learning_rate, or give training.grad_clip or warmup_iterations");
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
  return Timed<Tensor>{.value = std::move(gradient), .ready = OverSince(begun_ns)};
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
    GP_RETURN_IF_ERROR(context_.backend->EmbeddingGrad(saved.inputs.int32(), ViewOf(saved.grad_embedded),
                                                       ViewOf(embedding_->gradient)));
  }
  saved = MicroBatch();
  return OverSince(begun_ns);
}

std::optional<double> TransformerStage::Loss() const {
  if (!is_last()) {
    return std::nullopt;
  }
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) /
         static_cast<double>(options_.training.tokens_per_iteration);
}

absl::Status TransformerStage::JoinOwnTiedGradients() {
  if (own_head_gradient_.empty() || tied_gradient_joined_) {
    return absl::OkStatus();
  }
  tied_gradient_joined_ = true;
  return context_.backend->Axpy(1.0, own_head_gradient_.fp32(), embedding_->gradient.fp32());
}

absl::StatusOr<std::vector<NormTerm>> TransformerStage::GradientNormTerms() {
  GP_RETURN_IF_ERROR(JoinOwnTiedGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "norm terms before AddTiedGradient");
  std::vector<NormTerm> terms;
  for (const Parameter& parameter : parameters_.all()) {
    if (&parameter == embedding_ && !is_first()) {
      continue;  // the first chunk accounts for it
    }
    GP_ASSIGN_OR_RETURN(const double sum, context_.backend->SumOfSquares(parameter.gradient.fp32()));
    terms.push_back({.name = parameter.spec.name, .sum_of_squares = sum});
  }
  return terms;
}

absl::Status TransformerStage::AddTiedGradient(Tensor other) {
  GP_CHECK(shares_embedding() && !tied_gradient_joined_);
  if (other.dtype() != DType::kFp32 || other.elements() != embedding_->gradient.elements()) {
    return absl::DataLossError(fmt::format("the tied gradient that came has {} elements, the embedding has {}",
                                           other.elements(), embedding_->gradient.elements()));
  }
  tied_gradient_joined_ = true;
  // One rounding of embedding use + head use; addition commutes, so both ends hold the same bits.
  return context_.backend->Axpy(1.0, other.fp32(), embedding_->gradient.fp32());
}

absl::StatusOr<Completion> TransformerStage::Update(int64_t iteration, std::optional<double> grad_norm, int64_t) {
  const int64_t begun_ns = Clock::Real().NowNs();
  GP_RETURN_IF_ERROR(JoinOwnTiedGradients());
  GP_CHECK(!shares_embedding() || tied_gradient_joined_, "update before AddTiedGradient");
  for (Parameter& parameter : parameters_.all()) {
    GP_RETURN_IF_ERROR(UpdateParameter(options_.training, iteration, grad_norm, *context_.backend, parameter));
  }
  return OverSince(begun_ns);
}

double TransformerStage::LearningRate(int64_t iteration) const {
  return geopipe::LearningRate(options_.training, iteration);
}

}  // namespace geopipe
