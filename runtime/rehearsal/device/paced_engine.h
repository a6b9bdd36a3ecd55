// A stage engine on a device that takes its time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/model/stage_engine.h"
#include "runtime/rehearsal/device/action_costs.h"
#include "runtime/rehearsal/device/paced_device.h"

namespace geopipe {

// Decorates `engine`: its actions last `costs`. A backward that the costs do not split lasts from the begin of I to the
// end of W, which follows at once.
class PacedEngine final : public StageEngine {
 public:
  // `device` outlives the engine.
  PacedEngine(std::unique_ptr<StageEngine> engine, const ActionCosts& costs, PacedDevice& device)
      : engine_(std::move(engine)), costs_(costs), device_(device) {}

  absl::Status BeginIteration(int64_t iteration) override { return engine_->BeginIteration(iteration); }
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override;
  std::optional<Tensor> TakeTiedGradient() override { return engine_->TakeTiedGradient(); }
  absl::Status AddTiedGradient(Tensor other) override { return engine_->AddTiedGradient(std::move(other)); }
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) override { return engine_->ReadScalars(norm_terms); }
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override;
  void AbandonIteration() override { engine_->AbandonIteration(); }

 private:
  std::unique_ptr<StageEngine> engine_;
  ActionCosts costs_;
  PacedDevice& device_;
};

}  // namespace geopipe
