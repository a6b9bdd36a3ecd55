// The two ends of the model: token embedding, and final norm, head and loss.
#include <fmt/format.h>

#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          fmt::format("token {} in the training data lies outside model.vocab_size {}; the data was made with another "
                      "tokenizer or model.vocab_size is too small",
                      token, vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TransformerStage::ReadTokens(int32_t micro_batch, MicroBatch& saved) {
  if (!is_first() && !is_last()) {
    return absl::OkStatus();
  }
  const std::vector<int64_t> shape{context_.tokens()};
  if (is_first()) {
    GP_ASSIGN_OR_RETURN(saved.inputs,
                        Tensor::Create(*context_.allocator, MemoryCategory::kActivations, DType::kInt32, shape));
  }
  if (is_last()) {
    GP_ASSIGN_OR_RETURN(saved.targets,
                        Tensor::Create(*context_.allocator, MemoryCategory::kActivations, DType::kInt32, shape));
  }
  const auto read = [&](const Tensor& inputs, const Tensor& targets) -> absl::Status {
    GP_RETURN_IF_ERROR(tokens_->Read(iteration_, micro_batch * options_.micro_batch_size, options_.micro_batch_size,
                                     inputs.int32(), targets.int32()));
    GP_RETURN_IF_ERROR(CheckTokens(inputs.int32(), options_.model.vocab_size));
    return CheckTokens(targets.int32(), options_.model.vocab_size);
  };
  if (!is_last()) {
    return FillFromHost(saved.inputs, [&](const Tensor& inputs) { return read(inputs, unused_tokens_); });
  }
  return FillFromHost(saved.targets, [&](const Tensor& targets) {
    return is_first() ? FillFromHost(saved.inputs, [&](const Tensor& inputs) { return read(inputs, targets); })
                      : read(unused_tokens_, targets);
  });
}

absl::StatusOr<Tensor> TransformerStage::EmbeddingForward(const MicroBatch& saved) {
  const bool stays = !blocks_.empty() || is_last();
  GP_ASSIGN_OR_RETURN(Tensor out, context_.NewRows(options_.model.hidden_size,
                                                   stays ? MemoryCategory::kActivations : MemoryCategory::kTransport));
  GP_RETURN_IF_ERROR(context_.backend->Embedding(saved.inputs, ViewOf(embedding_->value), ViewOf(out)));
  return out;
}

absl::Status TransformerStage::HeadForward(int32_t micro_batch, Tensor input, MicroBatch& saved) {
  Backend& backend = *context_.backend;
  saved.head_residual = std::move(input);
  GP_ASSIGN_OR_RETURN(saved.head_rms, context_.NewRows(1, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.head_input, context_.NewRows(options_.model.hidden_size, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.logits, context_.NewRows(options_.model.vocab_size, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(backend.RmsNorm(ViewOf(saved.head_residual), final_norm_->value, options_.model.rms_norm_eps,
                                     ViewOf(saved.head_input), saved.head_rms));
  GP_RETURN_IF_ERROR(backend.MatMul(Product::kNT, ViewOf(saved.head_input), ViewOf(head_->value), ViewOf(saved.logits),
                                    /*accumulate=*/false));
  return backend.CrossEntropy(ViewOf(saved.logits), saved.targets, Scalar(ScalarKind::kLoss, micro_batch));
}

absl::StatusOr<Tensor> TransformerStage::HeadBackwardInput(MicroBatch& saved) {
  Backend& backend = *context_.backend;
  // The mean over the iteration's tokens, known before any micro-batch has run.
  GP_RETURN_IF_ERROR(backend.CrossEntropyGrad(ViewOf(saved.logits), saved.targets,
                                              1.0 / static_cast<double>(options_.training.tokens_per_iteration)));
  saved.targets = Tensor();
  GP_ASSIGN_OR_RETURN(const Tensor grad_head_input,
                      context_.NewRows(options_.model.hidden_size, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(backend.MatMul(Product::kNN, ViewOf(saved.logits), ViewOf(head_->value), ViewOf(grad_head_input),
                                    /*accumulate=*/false));
  const MatrixView residual = ViewOf(saved.head_residual);
  GP_RETURN_IF_ERROR(
      backend.RmsNormWeightGrad(residual, saved.head_rms, ViewOf(grad_head_input), final_norm_->gradient));
  GP_RETURN_IF_ERROR(backend.RmsNormInputGrad(residual, final_norm_->value, saved.head_rms, ViewOf(grad_head_input),
                                              ConstMatrixView(), residual));
  saved.head_rms = Tensor();
  return std::move(saved.head_residual);
}

absl::Status TransformerStage::HeadBackwardWeight(MicroBatch& saved) {
  const Tensor& accumulator = own_head_gradient_.empty() ? head_->gradient : own_head_gradient_;
  return context_.backend->MatMul(Product::kTN, ViewOf(saved.logits), ViewOf(saved.head_input), ViewOf(accumulator),
                                  /*accumulate=*/true);
}

std::optional<Tensor> TransformerStage::TakeTiedGradient() {
  if (!shares_embedding()) {
    return std::nullopt;
  }
  GP_CHECK(!tied_gradient_joined_ && !tied_message_.empty(),
           "the tied gradient is taken once, before the other's is added");
  const absl::Status copied = Copy(embedding_->gradient, tied_message_);
  GP_CHECK(copied.ok(), "{}", copied.ToString());
  return std::move(tied_message_);
}

}  // namespace geopipe
