// The two ends of the model: token embedding, and final norm, head and loss.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/memory_model.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          fmt::format("token {} in the data lies outside model.vocab_size {}; the data was made with another "
                      "tokenizer or model.vocab_size is too small",
                      token, vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TransformerStage::ReadTokens(TokenSource* source, int64_t iteration, int32_t micro_batch,
                                          MicroBatch& saved) {
  if (!reads_tokens()) {
    return absl::OkStatus();
  }
  const auto make = [this](MemoryCategory category) {
    return Tensor::Create(*context_.allocator, category, DType::kInt32, {context_.tokens()});
  };
  if (is_first()) {
    GP_ASSIGN_OR_RETURN(saved.inputs, make(MemoryCategory::kActivations));
  }
  if (is_last()) {
    GP_ASSIGN_OR_RETURN(saved.targets, make(MemoryCategory::kWorkspace));
  }
  if (options_.document_end.has_value()) {
    GP_ASSIGN_OR_RETURN(saved.starts, make(MemoryCategory::kActivations));
  }
  if (dry_) {
    return absl::OkStatus();
  }
  const ParameterSharding& sharding = options_.sharding;
  const int64_t first_sample = (micro_batch * sharding.data + sharding.data_rank) * options_.micro_batch_size;
  const auto read = [&](const Tensor& inputs, const Tensor& targets) -> absl::Status {
    GP_RETURN_IF_ERROR(
        source->Read(iteration, first_sample, options_.micro_batch_size, inputs.int32(), targets.int32()));
    GP_RETURN_IF_ERROR(CheckTokens(inputs.int32(), options_.model.vocab_size));
    GP_RETURN_IF_ERROR(CheckTokens(targets.int32(), options_.model.vocab_size));
    return saved.starts.empty() ? absl::OkStatus() : FillFromHost(saved.starts, [&](const Tensor& starts) {
      FindStarts(inputs.int32(), starts.int32());
      return absl::OkStatus();
    });
  };
  const auto read_inputs = [&](const Tensor& targets) {
    return is_first() ? FillFromHost(saved.inputs, [&](const Tensor& inputs) { return read(inputs, targets); })
                      : read(unused_inputs_, targets);
  };
  return is_last() ? FillFromHost(saved.targets, read_inputs) : read_inputs(unused_targets_);
}

void TransformerStage::FindStarts(std::span<const int32_t> inputs, std::span<int32_t> starts) const {
  int64_t start = 0;
  for (int64_t i = 0; i < std::ssize(inputs); ++i) {
    const int64_t position = i % context_.sequence;
    if (position == 0) {
      start = 0;
    } else if (inputs[i - 1] == *options_.document_end) {
      start = position;
    }
    starts[i] = static_cast<int32_t>(start);
  }
}

absl::StatusOr<Tensor> TransformerStage::EmbeddingForward(const MicroBatch& saved) {
  const bool stays = !blocks_.empty() || is_last();
  const MemoryCategory category = stays ? MemoryCategory::kActivations : MemoryCategory::kTransport;
  GP_ASSIGN_OR_RETURN(
      Tensor out, context_.NewRows(context_.hidden(), context_.divides_rows() ? MemoryCategory::kWorkspace : category));
  GP_RETURN_IF_ERROR(
      context_.backend->Embedding(saved.inputs, ViewOf(embedding_->value), context_.first_class(), ViewOf(out)));
  return context_.SumToRegion(std::move(out), category);
}

absl::Status TransformerStage::EmbeddingBackwardWeight(MicroBatch& saved) {
  return context_.backend->EmbeddingGrad(saved.inputs, ViewOf(saved.grad_embedded), context_.first_class(),
                                         ViewOf(embedding_->gradient));
}

MatrixView TransformerStage::ClassesOf(const Tensor& rows) const {
  MatrixView view = ViewOf(rows);
  view.rows = context_.classes();
  return view;
}

MatrixView TransformerStage::LogitsOf(const Tensor& rows) const {
  return ColumnsOf(ViewOf(rows), 0, context_.classes());
}

absl::Status TransformerStage::HeadForward(int32_t micro_batch, Purpose purpose, Tensor input, MicroBatch& saved) {
  Backend& backend = *context_.backend;
  const int64_t n = context_.tokens();
  saved.head_residual = std::move(input);
  GP_ASSIGN_OR_RETURN(saved.head_rms, context_.NewStatistics(MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.head_input, context_.NewRegion(context_.hidden(), MemoryCategory::kActivations));
  // Logits of fp32 become their gradient in place; others are made a few rows at a time.
  const bool in_place = context_.dtype() == DType::kFp32;
  const bool leaves_gradient = purpose == Purpose::kTraining;
  if (in_place || leaves_gradient) {
    GP_ASSIGN_OR_RETURN(saved.grad_logits, context_.NewRows(context_.vocabulary(), MemoryCategory::kActivations));
  }
  GP_RETURN_IF_ERROR(backend.RmsNorm(ViewOf(saved.head_residual), final_norm_->value, options_.model.rms_norm_eps,
                                     ViewOf(saved.head_input), saved.head_rms));
  Tensor room;
  GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context_.Whole(saved.head_input, room));
  const int64_t rows = in_place ? n : std::min(n, kLossRows);
  Tensor chunk;
  if (!in_place) {
    GP_ASSIGN_OR_RETURN(chunk, Tensor::Create(*context_.allocator, MemoryCategory::kWorkspace, DType::kFp32,
                                              {rows, context_.vocabulary()}));
  }
  GP_ASSIGN_OR_RETURN(const LossRoom loss_room, NewLossRoom(rows));
  const VectorView<double> loss = Scalar(ScalarKind::kLoss, micro_batch);
  if (purpose == Purpose::kTraining) {  // else it adds to those of earlier passes
    GP_RETURN_IF_ERROR(backend.ZeroBytes(reinterpret_cast<std::byte*>(loss.data), ByteSize(DType::kFp64)));
  }
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t count = std::min(rows, n - first);
    const MatrixView logits =
        in_place ? RowsOf(LogitsOf(saved.grad_logits), first, count) : RowsOf(LogitsOf(chunk), 0, count);
    const MatrixView gradient = !leaves_gradient ? MatrixView()
                                : in_place       ? logits
                                                 : RowsOf(LogitsOf(saved.grad_logits), first, count);
    const VectorView<const int32_t> targets(saved.targets);
    GP_RETURN_IF_ERROR(
        backend.MatMul(Product::kNT, RowsOf(x, first, count), ClassesOf(head_->value), Addend::None(), logits));
    GP_RETURN_IF_ERROR(HeadLoss(logits, {targets.data + first, count}, loss_room, gradient, loss));
  }
  saved.targets = Tensor();
  return absl::OkStatus();
}

absl::StatusOr<TransformerStage::LossRoom> TransformerStage::NewLossRoom(int64_t rows) {
  LossRoom room;
  if (options_.sharding.tensor > 1) {
    GP_ASSIGN_OR_RETURN(room.maxima,
                        Tensor::Create(*context_.allocator, MemoryCategory::kWorkspace, DType::kFp32, {rows}));
    GP_ASSIGN_OR_RETURN(room.sums,
                        Tensor::Create(*context_.allocator, MemoryCategory::kWorkspace, DType::kFp32, {2 * rows}));
  }
  return room;
}

// Adds the loss of some rows, and leaves (unless that view is empty) the gradient of the iteration's mean, whose
// divisor, the number of the iteration's tokens, is known before any micro-batch has run. Where ranks divide the
// vocabulary, no logit leaves its rank (arXiv 1909.08053, section 3).
absl::Status TransformerStage::HeadLoss(const MatrixView& logits, VectorView<const int32_t> targets,
                                        const LossRoom& room, const MatrixView& gradient, VectorView<double> loss) {
  Backend& backend = *context_.backend;
  const double scale = 1.0 / static_cast<double>(options_.training.tokens_per_iteration);
  if (options_.sharding.tensor == 1) {
    return backend.CrossEntropy(logits, targets, scale, gradient, loss);
  }
  const Tensor maxima = room.maxima.Part(0, {logits.rows});
  const Tensor sums = room.sums.Part(0, {2 * logits.rows});
  GP_RETURN_IF_ERROR(backend.CrossEntropyMax(logits, maxima));
  GP_RETURN_IF_ERROR(context_.AllReduce(ReduceOp::kMax, maxima));
  GP_RETURN_IF_ERROR(backend.CrossEntropySums(logits, maxima, targets, context_.first_class(), sums));
  GP_RETURN_IF_ERROR(context_.AllReduce(ReduceOp::kSum, sums));
  return backend.CrossEntropyGrad(logits, maxima, sums, targets, context_.first_class(), scale, gradient, loss);
}

absl::StatusOr<Tensor> TransformerStage::HeadBackwardInput(MicroBatch& saved) {
  Backend& backend = *context_.backend;
  GP_ASSIGN_OR_RETURN(const Tensor grad_head_input, context_.NewRows(context_.hidden(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(backend.MatMul(Product::kNN, LogitsOf(saved.grad_logits), ClassesOf(head_->value), Addend::None(),
                                    ViewOf(grad_head_input)));
  GP_RETURN_IF_ERROR(context_.SumOverRanks(grad_head_input));
  const MatrixView residual = ViewOf(saved.head_residual);
  GP_RETURN_IF_ERROR(backend.RmsNormGrad(residual, final_norm_->value, saved.head_rms,
                                         context_.RegionOf(grad_head_input), ConstMatrixView(), residual,
                                         final_norm_->gradient));
  saved.head_rms = Tensor();
  return std::move(saved.head_residual);
}

absl::Status TransformerStage::HeadBackwardWeight(MicroBatch& saved, bool adds) {
  const Tensor& accumulator = tied() && is_first() ? parameters_.tied_head_gradient() : head_->gradient;
  Tensor room;
  GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context_.Whole(saved.head_input, room));
  const MatrixView sum = ClassesOf(accumulator);
  return context_.backend->MatMul(Product::kTN, LogitsOf(saved.grad_logits), x,
                                  adds ? Addend{.matrix = sum} : Addend::None(), sum);
}

absl::StatusOr<std::optional<Timed<Tensor>>> TransformerStage::TakeTiedGradient() {
  if (!shares_embedding()) {
    return std::nullopt;
  }
  GP_CHECK(!tied_gradient_joined_ && !tied_message_.empty(),
           "the tied gradient is taken once, before the other's is added");
  GP_RETURN_IF_ERROR(FinishGradients());
  GP_ASSIGN_OR_RETURN(const Mark begun, Begun());
  GP_RETURN_IF_ERROR(Copy(parameters_.GradientShare(is_first() ? embedding_bucket_ : head_bucket_), tied_message_));
  return std::optional(Timed<Tensor>{std::move(tied_message_), Recorded(begun)});
}

}  // namespace geopipe
