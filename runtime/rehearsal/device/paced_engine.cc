#include "runtime/rehearsal/device/paced_engine.h"

#include <utility>

#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::Status PacedEngine::Begin(int32_t micro_batch, const Completion& input) {
  GP_RETURN_IF_ERROR(device_.Wait(input));
  device_.Begin(input.ready_ns());
  if (meetings_.tensor_ranks != nullptr) {
    GP_ASSIGN_OR_RETURN(const int64_t met_ns,
                        meetings_.tensor_ranks->Meet(iteration_, micro_batch, device_.begun_ns()));
    device_.MeetAction(met_ns);
  }
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> PacedEngine::Forward(int32_t micro_batch, Timed<Tensor> input) {
  GP_RETURN_IF_ERROR(Begin(micro_batch, input.ready));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> output, engine_->Forward(micro_batch, std::move(input)));
  GP_RETURN_IF_ERROR(device_.Wait(output.ready));
  output.ready = device_.End(costs_.forward_ns);
  return output;
}

absl::StatusOr<Timed<Tensor>> PacedEngine::Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) {
  GP_RETURN_IF_ERROR(Begin(micro_batch, input.ready));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> output, engine_->Evaluate(pass, micro_batch, std::move(input)));
  GP_RETURN_IF_ERROR(device_.Wait(output.ready));
  output.ready = device_.End(costs_.forward_ns);
  return output;
}

absl::StatusOr<Timed<Tensor>> PacedEngine::BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) {
  GP_RETURN_IF_ERROR(Begin(micro_batch, grad_output.ready));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, engine_->BackwardInput(micro_batch, std::move(grad_output)));
  GP_RETURN_IF_ERROR(device_.Wait(grad_input.ready));
  grad_input.ready = device_.End(costs_.input_grad_ns);
  return grad_input;
}

absl::StatusOr<Timed<Tensor>> PacedEngine::Backward(int32_t micro_batch, Timed<Tensor> grad_output) {
  GP_RETURN_IF_ERROR(Begin(micro_batch, grad_output.ready));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, engine_->Backward(micro_batch, std::move(grad_output)));
  GP_RETURN_IF_ERROR(device_.Wait(grad_input.ready));
  grad_input.ready = device_.End(costs_.input_grad_ns + costs_.weight_grad_ns);
  return grad_input;
}

absl::StatusOr<Completion> PacedEngine::BackwardWeight(int32_t micro_batch, int64_t from_ns) {
  device_.Begin(from_ns);
  GP_ASSIGN_OR_RETURN(const Completion weights, engine_->BackwardWeight(micro_batch, from_ns));
  GP_RETURN_IF_ERROR(device_.Wait(weights));
  return device_.End(costs_.weight_grad_ns);
}

// Waits for the replicas first: the norm's terms are those of the reduced gradients.
absl::StatusOr<Timed<ScalarReader>> PacedEngine::ReadScalars(bool norm_terms) {
  if (meetings_.replicas != nullptr) {
    GP_ASSIGN_OR_RETURN(const int64_t met_ns, meetings_.replicas->Meet(iteration_, 0, device_.free_ns()));
    device_.MeetUpdate(met_ns);
  }
  return engine_->ReadScalars(norm_terms);
}

absl::StatusOr<Completion> PacedEngine::Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) {
  device_.BeginUpdate(iteration);
  GP_ASSIGN_OR_RETURN(const Completion update, engine_->Update(iteration, grad_norm, from_ns));
  GP_RETURN_IF_ERROR(device_.Wait(update));
  return device_.EndUpdate(costs_.epilogue_ns, from_ns);
}

}  // namespace geopipe
