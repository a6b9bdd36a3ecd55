// The interface that the executor drives: the arithmetic of one stage of the pipeline, on whatever device.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Sum of squares (fp64) of one parameter's gradient, before clipping.
struct NormTerm {
  std::string name;  // HF tensor name
  double sum_of_squares = 0;
};

// The results of an iteration.
struct IterationScalars {
  // Mean cross-entropy over all predicted tokens, summed in micro-batch order. Last stage only; absent where the
  // stage's input was not finite, which the stage that made it reports.
  std::optional<double> loss;
  // First micro-batch whose activation is not finite although the stage's input was. All stages but the last.
  std::optional<int32_t> not_finite;
  // Norm terms, when asked for, of every parameter this stage accounts for. The first stage alone accounts for a tied
  // embedding.
  std::vector<NormTerm> norm_terms;
};

// Reads the scalars in host memory. Called before the next iteration begins.
using ScalarReader = std::function<IterationScalars()>;

// The same of an evaluation's loss: mean cross-entropy over all tokens of all its passes, added up micro-batch by
// micro-batch over the passes, and then in micro-batch order. Nullopt on all stages but the last, and where nothing is
// computed.
using LossReader = std::function<std::optional<double>()>;

// One iteration is: BeginIteration; for each micro-batch Forward, then Backward or BackwardInput and then
// BackwardWeight (in the schedule's order; backwards and weight gradients in micro-batch order); then TakeTiedGradient
// and AddTiedGradient as needed; then ReadScalars; then Update. Until Update the iteration can be abandoned. Between
// two iterations the weights can be evaluated, which leaves no trace: BeginEvaluation; for each pass over the
// micro-batches Evaluate of each (in the order of the schedule's forwards); then EndEvaluation. Calls come from the
// executor thread alone, and none waits for the device: results may be under way when a call returns, and say when they
// are ready. `from_ns` tells a call without input since when the device was free to begin it. Tensors lie in the memory
// of the engine's device.
class StageEngine {
 public:
  virtual ~StageEngine() = default;

  virtual absl::Status BeginIteration(int64_t iteration) = 0;

  // F. `input`: activation [b*s, hidden] of the previous stage, or a tensor rank's part of it; empty on the first
  // stage, which reads its tokens itself. Returns the activation for the next stage; empty on the last, which adds its
  // micro-batch's loss.
  virtual absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) = 0;

  // I. `grad_output`: gradient with respect to Forward's result; empty on the last stage. Returns the gradient with
  // respect to Forward's input; empty on the first stage.
  virtual absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) = 0;

  // W. Accumulates the weight gradients of the micro-batch and frees what I kept for it.
  virtual absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) = 0;

  // B: both at once, layer by layer, so that W of a layer need not wait for I of the others. The result is ready when
  // all of it is done.
  virtual absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) = 0;

  // The two calls exchange the gradient of a tied embedding whose uses are on different stages: this stage's
  // accumulator [vocab, hidden] (embedding use on the first, head use on the last stage) goes to the other end, and the
  // other end's is added. The sum is formed once, as embedding use + head use, so both ends hold the same bits. nullopt
  // / not called where the stage shares no embedding.
  virtual absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() = 0;
  virtual absl::Status AddTiedGradient(Timed<Tensor> other) = 0;

  // The iteration's scalars: ready when the device has done all of the iteration.
  virtual absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) = 0;

  // AdamW with the iteration's learning rate. `grad_norm`: the global norm, for clipping; nullopt: no clipping.
  virtual absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) = 0;

  virtual absl::Status BeginEvaluation() = 0;
  // Forward of a micro-batch of the validation data's pass (from 0 in each evaluation), of which nothing is kept. Input
  // and result are Forward's.
  virtual absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) = 0;
  // The loss over all `passes`, ready when the device has done all of them.
  virtual absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t passes) = 0;

  // Drops what the iteration or evaluation under way keeps, if there is one: weights and moments stay as they were
  // before it, and any iteration may begin. REQUIRES: the device has done all work it was given; Update was not called
  // for the iteration.
  virtual void AbandonIteration() = 0;
};

}  // namespace geopipe
