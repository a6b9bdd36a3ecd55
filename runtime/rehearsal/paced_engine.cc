#include "runtime/rehearsal/paced_engine.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/kept_time.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Of the running median of lateness, which is found within some tens of actions.
constexpr int64_t kLeadStepNs = 3'000;
// An action is at least so many times as long as what is cut off its sleep.
constexpr int64_t kLeastLeads = 16;

}  // namespace

PacedEngine::PacedEngine(std::unique_ptr<StageEngine> engine, const ActionCosts& costs, Clock& clock)
    : engine_(std::move(engine)), costs_(costs), clock_(clock) {}

void PacedEngine::Begin() {
  called_ns_ = clock_.NowNs();
  const int64_t due_ns = std::max(last_action_end_ns_, std::exchange(ready_ns_, 0));
  // Not yet due: the sleep before was cut.
  last_action_begin_ns_ = called_ns_ - due_ns <= kMostMadeGoodNs ? due_ns : called_ns_;
}

void PacedEngine::Pace(int64_t duration_ns) {
  const int64_t arithmetic_ns = clock_.NowNs() - called_ns_;
  Rest(last_action_begin_ns_ + std::max(duration_ns, arithmetic_ns), duration_ns);
}

void PacedEngine::Rest(int64_t end_ns, int64_t duration_ns) {
  last_action_end_ns_ = end_ns;
  const int64_t lead_ns = std::min(lead_ns_, duration_ns / kLeastLeads);
  if (clock_.NowNs() >= end_ns - lead_ns) {
    return;
  }
  clock_.SleepUntilNs(end_ns - lead_ns);
  if (lead_ns == lead_ns_) {
    const bool late = clock_.NowNs() > end_ns;
    lead_ns_ = std::clamp<int64_t>(lead_ns_ + (late ? kLeadStepNs : -kLeadStepNs), 0, kMostLeadNs);
  }
}

absl::Status PacedEngine::BeginIteration(int64_t iteration) { return engine_->BeginIteration(iteration); }

absl::StatusOr<Tensor> PacedEngine::Forward(int32_t micro_batch, Tensor input) {
  Begin();
  GP_ASSIGN_OR_RETURN(Tensor output, engine_->Forward(micro_batch, std::move(input)));
  Pace(costs_.forward_ns);
  return output;
}

absl::StatusOr<Tensor> PacedEngine::BackwardInput(int32_t micro_batch, Tensor grad_output) {
  Begin();
  GP_ASSIGN_OR_RETURN(Tensor grad_input, engine_->BackwardInput(micro_batch, std::move(grad_output)));
  if (splits_backward()) {
    Pace(costs_.input_grad_ns);
  }
  return grad_input;
}

absl::Status PacedEngine::BackwardWeight(int32_t micro_batch) {
  if (splits_backward()) {
    Begin();
  }
  GP_RETURN_IF_ERROR(engine_->BackwardWeight(micro_batch));
  Pace(splits_backward() ? costs_.weight_grad_ns : costs_.input_grad_ns);
  return absl::OkStatus();
}

std::optional<double> PacedEngine::Loss() const { return engine_->Loss(); }

absl::StatusOr<std::vector<NormTerm>> PacedEngine::GradientNormTerms() { return engine_->GradientNormTerms(); }

std::optional<Tensor> PacedEngine::TakeTiedGradient() { return engine_->TakeTiedGradient(); }

absl::Status PacedEngine::AddTiedGradient(Tensor other) { return engine_->AddTiedGradient(std::move(other)); }

absl::Status PacedEngine::Update(int64_t iteration, std::optional<double> grad_norm) {
  const int64_t called_ns = clock_.NowNs();
  GP_RETURN_IF_ERROR(engine_->Update(iteration, grad_norm));
  const int64_t arithmetic_ns = clock_.NowNs() - called_ns;
  const int64_t ready_ns = std::exchange(ready_ns_, 0);  // the exchange was over
  Rest(std::max(last_action_end_ns_ + std::max(costs_.epilogue_ns, arithmetic_ns), ready_ns + arithmetic_ns),
       costs_.epilogue_ns);
  return absl::OkStatus();
}

double PacedEngine::LearningRate(int64_t iteration) const { return engine_->LearningRate(iteration); }

}  // namespace geopipe
