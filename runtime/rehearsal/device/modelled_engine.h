// A stage engine without arithmetic: its messages have the given size and are ready as soon as their input; with
// PacedEngine around it they take the modelled time. It rehearses a big plan on real links without any device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

// Messages are zeros; there is no loss, no gradient and no weight. Checks, as bugs, the order of calls: inputs where a
// stage has them, I after F, W after I.
class ModelledEngine final : public StageEngine {
 public:
  struct Options {
    bool first = false;            // the stage has no input
    bool last = false;             // the stage has no output
    int64_t activation_bytes = 0;  // of the message to the next stage
    int64_t gradient_bytes = 0;    // of the message to the previous stage
    int32_t micro_batches = 0;
  };

  // `allocator` outlives the engine and what it returns.
  ModelledEngine(const Options& options, Allocator& allocator);

  absl::Status BeginIteration(int64_t iteration) override;
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override;
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override { return std::nullopt; }
  absl::Status AddTiedGradient(Timed<Tensor> other) override;
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool) override {
    return Timed<ScalarReader>{[] { return IterationScalars(); }, {}};
  }
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override;
  absl::Status BeginEvaluation() override { return absl::OkStatus(); }
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t) override {
    return Timed<LossReader>{[] { return std::nullopt; }, {}};
  }
  void AbandonIteration() override;

 private:
  enum class State : uint8_t { kNew, kForwardDone, kInputGradDone, kDone };

  // Returns F's result.
  absl::StatusOr<Timed<Tensor>> Output(int32_t micro_batch, const Timed<Tensor>& input);
  absl::StatusOr<Timed<Tensor>> Message(int64_t bytes, const Completion& ready);
  void Advance(int32_t micro_batch, State from, State to);

  Options options_;
  Allocator& allocator_;
  std::vector<State> states_;  // of each micro-batch
};

}  // namespace geopipe
