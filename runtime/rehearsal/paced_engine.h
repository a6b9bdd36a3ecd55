// A stage engine that takes its time: every action lasts as long as the device it stands for would need, and longer
// only if the arithmetic itself does. Real numbers with a big machine's timing, reproducible on a small shared one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/model/stage_engine.h"
#include "runtime/rehearsal/action_costs.h"

namespace geopipe {

// Decorates `engine`. An action ends `costs` after its begin, which is when the device it stands for would have begun:
// when the action before was over and its input was there. The executor calls somewhat later, because a sleeping thread
// of this machine wakes up late; that lateness (kMostMadeGoodNs at most) is not added up over the actions: later ones
// end as if there had been none, as soon as the thread has caught up. Nor over the stages: made_ns() travels with the
// result, and CouldBegin takes when it was due on another device. The sleep at an action's end is cut by what it lately
// took too long in the median (kMostLeadNs at most), so that results leave as often a little early as a little late. An
// action whose arithmetic takes longer lasts as long as that. A backward that the costs do not split lasts from the
// begin of I to the end of W, which follows at once. Update ends epilogue_ns after the chunk's last action, because
// what lies between the two (gradient exchange and norm) is part of that time.
class PacedEngine final : public StageEngine {
 public:
  static constexpr int64_t kMostLeadNs = 400'000;

  // `clock` outlives the engine.
  PacedEngine(std::unique_ptr<StageEngine> engine, const ActionCosts& costs, Clock& clock);

  absl::Status BeginIteration(int64_t iteration) override;
  void CouldBegin(int64_t ready_ns) override { ready_ns_ = ready_ns; }
  int64_t begun_ns() const override { return last_action_begin_ns_; }
  int64_t made_ns() const override { return last_action_end_ns_; }
  absl::StatusOr<Tensor> Forward(int32_t micro_batch, Tensor input) override;
  absl::StatusOr<Tensor> BackwardInput(int32_t micro_batch, Tensor grad_output) override;
  absl::Status BackwardWeight(int32_t micro_batch) override;
  std::optional<double> Loss() const override;
  absl::StatusOr<std::vector<NormTerm>> GradientNormTerms() override;
  std::optional<Tensor> TakeTiedGradient() override;
  absl::Status AddTiedGradient(Tensor other) override;
  absl::Status Update(int64_t iteration, std::optional<double> grad_norm) override;
  double LearningRate(int64_t iteration) const override;

 private:
  bool splits_backward() const { return costs_.split || costs_.weight_grad_ns > 0; }
  // The device begins the action that is called for now.
  void Begin();
  // It is busy with it for `duration_ns` since then, or for as long as the arithmetic has taken.
  void Pace(int64_t duration_ns);
  // Sleeps until the device is done at `end_ns`, after `duration_ns`.
  void Rest(int64_t end_ns, int64_t duration_ns);

  std::unique_ptr<StageEngine> engine_;
  ActionCosts costs_;
  Clock& clock_;
  int64_t ready_ns_ = 0;   // of the next action's input
  int64_t called_ns_ = 0;  // for the action under way
  int64_t last_action_begin_ns_ = 0;
  int64_t last_action_end_ns_ = 0;
  int64_t lead_ns_ = 0;  // by which sleeps are cut
};

}  // namespace geopipe
