#include "runtime/rehearsal/device/paced_engine.h"

#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::StatusOr<Timed<Tensor>> PacedEngine::Forward(int32_t micro_batch, Timed<Tensor> input) {
  device_.Begin(input.ready_ns());
  GP_ASSIGN_OR_RETURN(Timed<Tensor> output, engine_->Forward(micro_batch, std::move(input)));
  GP_RETURN_IF_ERROR(device_.Wait(output.ready));
  output.ready = device_.End(costs_.forward_ns);
  return output;
}

absl::StatusOr<Timed<Tensor>> PacedEngine::BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) {
  device_.Begin(grad_output.ready_ns());
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, engine_->BackwardInput(micro_batch, std::move(grad_output)));
  GP_RETURN_IF_ERROR(device_.Wait(grad_input.ready));
  grad_input.ready = costs_.split ? device_.End(costs_.input_grad_ns) : device_.Expected(costs_.input_grad_ns);
  return grad_input;
}

absl::StatusOr<Completion> PacedEngine::BackwardWeight(int32_t micro_batch, int64_t from_ns) {
  if (costs_.split) {
    device_.Begin(from_ns);
  }
  GP_ASSIGN_OR_RETURN(const Completion weights, engine_->BackwardWeight(micro_batch, from_ns));
  GP_RETURN_IF_ERROR(device_.Wait(weights));
  return device_.End(costs_.split ? costs_.weight_grad_ns : costs_.input_grad_ns);
}

absl::StatusOr<Completion> PacedEngine::Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) {
  device_.BeginUpdate(iteration);
  GP_ASSIGN_OR_RETURN(const Completion update, engine_->Update(iteration, grad_norm, from_ns));
  GP_RETURN_IF_ERROR(device_.Wait(update));
  return device_.EndUpdate(costs_.epilogue_ns, from_ns);
}

}  // namespace geopipe
