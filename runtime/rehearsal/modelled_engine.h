// A stage engine without arithmetic: it ships messages of the true size, and with PacedEngine around it takes the
// modelled time. A rehearsal of a big plan on real links with no device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

// Messages are zeros; there is no loss, no gradient and no weight. Checks, as bugs, that it is called as a stage engine
// must be: inputs where a chunk has them, I after F, W after I.
class ModelledEngine final : public StageEngine {
 public:
  struct Options {
    bool first = false;            // the chunk has no input
    bool last = false;             // the chunk has no output
    int64_t activation_bytes = 0;  // of the message to the next chunk
    int64_t gradient_bytes = 0;    // of the message to the previous chunk
    int32_t micro_batches = 0;
  };

  // `allocator` outlives the engine and what it returns.
  ModelledEngine(const Options& options, Allocator& allocator);

  absl::Status BeginIteration(int64_t iteration) override;
  absl::StatusOr<Tensor> Forward(int32_t micro_batch, Tensor input) override;
  absl::StatusOr<Tensor> BackwardInput(int32_t micro_batch, Tensor grad_output) override;
  absl::Status BackwardWeight(int32_t micro_batch) override;
  std::optional<double> Loss() const override { return std::nullopt; }
  absl::StatusOr<std::vector<NormTerm>> GradientNormTerms() override { return std::vector<NormTerm>(); }
  std::optional<Tensor> TakeTiedGradient() override { return std::nullopt; }
  absl::Status AddTiedGradient(Tensor other) override;
  absl::Status Update(int64_t iteration, std::optional<double> grad_norm) override;
  double LearningRate(int64_t) const override { return 0; }

 private:
  enum class State : uint8_t { kNew, kForwardDone, kInputGradDone, kDone };

  absl::StatusOr<Tensor> Message(int64_t bytes);
  void Advance(int32_t micro_batch, State from, State to);

  Options options_;
  Allocator& allocator_;
  std::vector<State> states_;  // of each micro-batch
};

}  // namespace geopipe
