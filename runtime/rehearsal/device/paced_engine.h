// A stage engine on a device that keeps to given durations.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/model/stage_engine.h"
#include "runtime/rehearsal/device/action_costs.h"
#include "runtime/rehearsal/device/meeting.h"
#include "runtime/rehearsal/device/paced_device.h"

namespace geopipe {

// Decorates `engine`: its actions last `costs`. Tensor ranks all-reduce in every F, I and B, whose costs say how long,
// so those begin when all of them have input and are free. The update begins when all replicas have done their last
// action: gradients are reduced over them.
class PacedEngine final : public StageEngine {
 public:
  // `device` outlives the engine.
  PacedEngine(std::unique_ptr<StageEngine> engine, const ActionCosts& costs, PacedDevice& device,
              const RankMeetings& meetings = {})
      : engine_(std::move(engine)), costs_(costs), device_(device), meetings_(meetings) {}

  absl::Status BeginIteration(int64_t iteration) override {
    iteration_ = iteration;
    return engine_->BeginIteration(iteration);
  }
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override;
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override { return engine_->TakeTiedGradient(); }
  absl::Status AddTiedGradient(Timed<Tensor> other) override { return engine_->AddTiedGradient(std::move(other)); }
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) override;
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override;
  absl::Status BeginEvaluation() override { return engine_->BeginEvaluation(); }
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t passes) override { return engine_->EndEvaluation(passes); }
  void AbandonIteration() override { engine_->AbandonIteration(); }

 private:
  // Begins an action that tensor ranks do together, when its input is there.
  absl::Status Begin(int32_t micro_batch, const Completion& input);

  std::unique_ptr<StageEngine> engine_;
  ActionCosts costs_;
  PacedDevice& device_;
  RankMeetings meetings_;
  int64_t iteration_ = 0;
};

}  // namespace geopipe
