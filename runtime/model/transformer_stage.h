// A run of a Llama model's layers with its ends, trained for real: the StageEngine behind `cpu` (and any other backend
// that computes).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/model_spec.h"
#include "runtime/backend/backend.h"
#include "runtime/collective/idle_communicator.h"
#include "runtime/model/parameters.h"
#include "runtime/model/stage_context.h"
#include "runtime/model/stage_engine.h"
#include "runtime/model/token_source.h"
#include "runtime/model/transformer_stage_block.h"
#include "runtime/model/weight_source.h"

namespace geopipe {

struct TransformerStageOptions {
  ModelSpec model;
  LayerRange layers;      // may hold no layer at all, but an end of the model then
  TrainingSpec training;  // tokens_per_iteration = micro_batches * micro_batch_size * sequence_length * replicas
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  int32_t micro_batches = 0;            // per iteration and replica
  std::optional<int64_t> document_end;  // the token after which attention begins anew
  ParameterSharding sharding = {};
  Recompute recompute = Recompute::kNone;
};

// The stage's losses and gradients are, with the same b, s, tensor ranks and replicas, the same bits for every split of
// the layers over stages, every schedule and every recompute mode: each operation sees the same operands on whichever
// rank it runs, and gradients are added in micro-batch order. Micro-batch q of replica d is number q * replicas + d of
// the iteration.
//
// Memory: model states as BucketStates in optimizer/model/memory_model.cc; MemoryOfStage's activation_bytes per
// micro-batch from F to I and weight_grad_bytes from there to W, exactly; messages are accounted as `transport`, as is
// BackwardInput's input while it runs. The iteration's scalars are not part of the device's memory: three numbers per
// micro-batch and one per parameter tensor.
class TransformerStage final : public StageEngine {
 public:
  // `allocator`, `backend`, `tokens` and `validation` must outlive the stage; `weights` is read here only. `tokens` may
  // be null when the stage has neither end of the model and no document_end, and `validation`, of whose iterations the
  // passes of evaluations read, also when nothing is evaluated. Errors: InvalidArgument when micro-batches don't make
  // up the iteration's tokens or the sequence is longer than the model's positions; Unimplemented when the backend does
  // not compute in the precision; those of `weights` and of the allocator.
  static absl::StatusOr<std::unique_ptr<TransformerStage>> Create(const TransformerStageOptions& options,
                                                                  Allocator& allocator, Backend& backend,
                                                                  TokenSource* tokens, WeightSource& weights,
                                                                  SharedRooms* rooms = nullptr,
                                                                  TokenSource* validation = nullptr);

  // Sets the groups through which ranks divide the stage from now on; before the first iteration and after each
  // abandoned one. All ranks of a group call it together. REQUIRES: no iteration is under way.
  absl::Status UseGroups(const RankGroups& groups);

  // Between the two calls passes take all memory and make all else that they need, so that an iteration then does not
  // have to, but compute nothing, read no tokens and send nothing to the groups. REQUIRES: UseGroups was not called;
  // only BeginIteration and passes come between.
  absl::Status BeginDryRun();
  void EndDryRun();
  // A message as another stage sends it, of undefined contents.
  absl::StatusOr<Tensor> NewMessage() const;

  absl::Status BeginIteration(int64_t iteration) override;
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override;
  absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override;
  absl::Status AddTiedGradient(Timed<Tensor> other) override;
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) override;
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override;
  absl::Status BeginEvaluation() override;
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t passes) override;
  void AbandonIteration() override;

  bool is_first() const { return options_.layers.has_embedding; }
  bool is_last() const { return options_.layers.has_head; }

  // Makes the next Update wait, on the device, for work that reads weights and moments.
  void UpdateAfter(const Completion& reading) { readers_.push_back(reading); }

  // Parameters by Hugging Face name; also the WeightSource of an export.
  ParameterSet& parameters() { return parameters_; }

 private:
  enum class Phase : uint8_t { kEmpty, kForwardDone, kInputGradDone };

  struct MicroBatch {
    Phase phase = Phase::kEmpty;
    Tensor inputs;         // [n] token ids; first stage
    Tensor targets;        // [n] token ids; last stage, freed by F
    Tensor starts;         // [n] where in its sample a token's document begins; with document_end, freed by I
    Tensor grad_embedded;  // [n, h]: gradient of the embedding's output; first stage
    std::vector<SavedBlock> blocks;
    Tensor head_residual;  // [r, h]: input of the final norm / given away as its gradient
    Tensor head_rms;       // [r]
    Tensor head_input;     // [r, h]: output of the final norm
    Tensor grad_logits;    // [n, vocab/t]: gradient of the logits
  };

  // A forward is for a backward, for which it keeps tensors, or for a loss alone.
  enum class Purpose : uint8_t { kTraining, kEvaluation };

  // Numbers that stay on the device until the iteration ends: for each micro-batch its loss and the sums of squares of
  // its input and output, for each parameter that of its gradient.
  enum class ScalarKind : uint8_t { kLoss, kInput, kOutput, kGradient };

  TransformerStage(const TransformerStageOptions& options, TokenSource* tokens, TokenSource* validation,
                   StageContext context, ParameterSet parameters);

  int64_t ScalarIndex(ScalarKind kind, int64_t index) const {
    return static_cast<int64_t>(kind) * options_.micro_batches + index;
  }
  VectorView<double> Scalar(ScalarKind kind, int64_t index) const {
    return VectorView<double>(scalars_).At(ScalarIndex(kind, index));
  }

  IterationScalars ScalarsIn(const Tensor& host, bool norm_terms);
  // Sum of the micro-batches' losses, in their order.
  double SumOfLosses(const Tensor& host) const;
  absl::Status SumLosses();
  absl::Status AllocateOwnBuffers();
  Device& device() const { return context_.allocator->device(); }
  // Begins work behind its input.
  absl::StatusOr<Mark> Begun(const Completion& input = {}) const;
  // Completion of the work that the device was given since `begun`.
  Completion Recorded(const Mark& begun) const { return device().Record(Queue::kCompute, begun); }
  absl::Status CheckMessage(std::string_view what, const Tensor& message) const;
  // Reads a micro-batch of the source's iteration.
  absl::Status ReadTokens(TokenSource* source, int64_t iteration, int32_t micro_batch, MicroBatch& saved);
  // Sets `starts` from the tokens of a micro-batch; both in the host's memory.
  void FindStarts(std::span<const int32_t> inputs, std::span<int32_t> starts) const;
  absl::StatusOr<Tensor> EmbeddingForward(const MicroBatch& saved);
  absl::Status HeadForward(int32_t micro_batch, Purpose purpose, Tensor input, MicroBatch& saved);
  // The halves of a backward: of the head, of a layer, of the embedding.
  absl::StatusOr<Tensor> BeginBackward(int32_t micro_batch, Tensor grad_output);
  absl::StatusOr<Tensor> LayerInputGrad(size_t layer, Tensor gradient, MicroBatch& saved);
  absl::StatusOr<Tensor> EndInputGrad(Tensor gradient, MicroBatch& saved);
  absl::Status HeadWeightGrad(int32_t micro_batch);
  absl::Status LayerWeightGrad(size_t layer, int32_t micro_batch);
  absl::Status EmbeddingWeightGrad(int32_t micro_batch);
  absl::StatusOr<Tensor> HeadBackwardInput(MicroBatch& saved);
  absl::Status HeadBackwardWeight(MicroBatch& saved, bool adds);
  absl::Status EmbeddingBackwardWeight(MicroBatch& saved);
  // Sums that tensor ranks exchange of some rows' loss; empty where one rank has the whole vocabulary.
  struct LossRoom {
    Tensor maxima;  // [rows]
    Tensor sums;    // [2 * rows]
  };
  absl::StatusOr<LossRoom> NewLossRoom(int64_t rows);
  absl::Status HeadLoss(const MatrixView& logits, VectorView<const int32_t> targets, const LossRoom& room,
                        const MatrixView& gradient, VectorView<double> loss);
  // The rows of head or embedding, and the columns of logits, that stand for tokens: all but padding.
  MatrixView ClassesOf(const Tensor& rows) const;
  MatrixView LogitsOf(const Tensor& rows) const;
  // Completes the gradients' sums over all ranks that share them, once per iteration.
  absl::Status FinishGradients();
  // Adds up the replicas' losses, and the terms of the gradient norm over all ranks of the stage.
  absl::Status SumScalars(bool norm_terms);
  // Makes a bucket's whole weights available, and starts to gather those of the next one in the forward or backward.
  absl::Status UseWeights(size_t place, bool backward);
  // The forward of a micro-batch whose tokens are read. Returns the message to the next stage.
  absl::StatusOr<Tensor> RunForward(int32_t micro_batch, Purpose purpose, Tensor input, MicroBatch& saved);
  absl::StatusOr<Tensor> BlocksForward(Purpose purpose, Tensor x, MicroBatch& saved);

  using Accumulator = ParameterSet::Accumulator;

  size_t first_block() const { return is_first() ? 1 : 0; }  // in order_
  bool tied() const { return options_.model.tie_word_embeddings; }
  // True for tied embeddings with the other use on another stage.
  bool shares_embedding() const { return tied() && options_.layers.has_embedding != options_.layers.has_head; }
  bool reads_tokens() const { return is_first() || is_last() || options_.document_end.has_value(); }
  bool IsLast(int32_t micro_batch) const { return micro_batch + 1 == options_.micro_batches; }

  const TransformerStageOptions options_;
  TokenSource* const tokens_;
  TokenSource* const validation_;
  StageContext context_;
  ParameterSet parameters_;

  std::vector<BlockParameters> blocks_;
  std::vector<size_t> order_;       // of the buckets whose weights the forward needs
  Parameter* embedding_ = nullptr;  // where held, also as the tied head
  Parameter* final_norm_ = nullptr;
  Parameter* head_ = nullptr;    // lm_head or the tied embedding
  size_t embedding_bucket_ = 0;  // where is_first()
  size_t head_bucket_ = 0;       // where is_last()
  Tensor tied_message_;          // where TakeTiedGradient copies to; allocated when an iteration begins
  Tensor unused_inputs_;         // the parts of a TokenSource's output that the stage does not keep
  Tensor unused_targets_;
  ReadyBlocks ready_tokens_;
  Allocator scalar_memory_;
  Tensor scalars_;                   // by ScalarIndex
  std::vector<MicroBatch> saved_;    // per micro-batch
  std::vector<Completion> readers_;  // UpdateAfter's
  int64_t iteration_ = 0;
  bool dry_ = false;
  std::vector<IdleCommunicator> idle_groups_;  // of a dry run: tensor, key_value, data
  bool gradients_finished_ = false;
  bool tied_gradient_joined_ = false;  // the other end's
};

}  // namespace geopipe
