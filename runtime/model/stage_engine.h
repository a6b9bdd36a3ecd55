// What the executor drives: the arithmetic of one chunk (virtual stage) of the pipeline. The real transformer stage,
// the modelled engine (sleeps for the modelled time) and the paced decorator all stand behind it; the executor does not
// know which one it has.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace geopipe {

// Sum of squares (fp64) of one parameter's gradient, before clipping.
struct NormTerm {
  std::string name;  // HF tensor name
  double sum_of_squares = 0;
};

// One iteration is: BeginIteration; for each micro-batch Forward, then BackwardInput, then BackwardWeight (in the
// schedule's order; backwards and weight gradients in micro-batch order); then GradientNormTerms and TakeTiedGradient /
// AddTiedGradient as needed; then Update. Calls come from the executor thread alone.
class StageEngine {
 public:
  virtual ~StageEngine() = default;

  virtual absl::Status BeginIteration(int64_t iteration) = 0;

  // Precedes a Forward or BackwardInput whose input came from elsewhere, a call whose device was held, and an Update
  // after an exchange: the call could have come at `ready_ns` (monotonic) had the device been free. For engines that
  // keep time; others need not know.
  virtual void CouldBegin(int64_t /*ready_ns*/) {}

  // When the device whose time the engine keeps began its last action, and when it was over and its result made
  // (monotonic); 0: the engine keeps none, and that was when it was called and when the call returned.
  virtual int64_t begun_ns() const { return 0; }
  virtual int64_t made_ns() const { return 0; }

  // F. `input`: activation [b*s, hidden] of the previous chunk; empty on the first chunk, which reads its tokens
  // itself. Returns the activation for the next chunk; empty on the last, which adds its micro-batch's loss. OutOfRange
  // when the activation is not finite.
  virtual absl::StatusOr<Tensor> Forward(int32_t micro_batch, Tensor input) = 0;

  // I. `grad_output`: gradient with respect to Forward's result; empty on the last chunk. Returns the gradient with
  // respect to Forward's input; empty on the first chunk.
  virtual absl::StatusOr<Tensor> BackwardInput(int32_t micro_batch, Tensor grad_output) = 0;

  // W. Accumulates the weight gradients of the micro-batch and frees what it kept.
  virtual absl::Status BackwardWeight(int32_t micro_batch) = 0;

  // Mean cross-entropy over all predicted tokens of the iteration, summed in micro-batch order; last chunk only.
  virtual std::optional<double> Loss() const = 0;

  // Terms of every parameter this chunk accounts for. A tied embedding is accounted for by the first chunk alone, after
  // AddTiedGradient.
  virtual absl::StatusOr<std::vector<NormTerm>> GradientNormTerms() = 0;

  // Tied embeddings with the two uses on different chunks: this chunk's accumulator [vocab, hidden] (embedding use on
  // the first, head use on the last chunk) to be sent to the other end, and the other end's to be added. The sum is
  // formed once, as embedding use + head use, so both ends hold the same bits. nullopt / not called where nothing is
  // shared.
  virtual std::optional<Tensor> TakeTiedGradient() = 0;
  virtual absl::Status AddTiedGradient(Tensor other) = 0;

  // AdamW with the iteration's learning rate. `grad_norm`: the global norm, for clipping; nullopt: no clipping.
  virtual absl::Status Update(int64_t iteration, std::optional<double> grad_norm) = 0;

  virtual double LearningRate(int64_t iteration) const = 0;
};

}  // namespace geopipe
