#include "runtime/rehearsal/device/modelled_engine.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

ModelledEngine::ModelledEngine(const Options& options, Allocator& allocator)
    : options_(options), allocator_(allocator), states_(options.micro_batches, State::kDone) {}

absl::Status ModelledEngine::BeginIteration(int64_t) {
  GP_CHECK(std::ranges::all_of(states_, [](State state) { return state == State::kDone; }), "iteration not finished");
  std::ranges::fill(states_, State::kNew);
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> ModelledEngine::Forward(int32_t micro_batch, Timed<Tensor> input) {
  Advance(micro_batch, State::kNew, State::kForwardDone);
  return Output(micro_batch, input);
}

absl::StatusOr<Timed<Tensor>> ModelledEngine::Evaluate(int64_t, int32_t micro_batch, Timed<Tensor> input) {
  return Output(micro_batch, input);
}

absl::StatusOr<Timed<Tensor>> ModelledEngine::Output(int32_t micro_batch, const Timed<Tensor>& input) {
  GP_CHECK(input.value.empty() == options_.first, "F{} has {} input", micro_batch, input.value.empty() ? "no" : "an");
  return options_.last ? Timed<Tensor>{.ready = input.ready} : Message(options_.activation_bytes, input.ready);
}

absl::StatusOr<Timed<Tensor>> ModelledEngine::BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) {
  const bool empty = grad_output.value.empty();
  GP_CHECK(empty == options_.last, "I{} has {} input", micro_batch, empty ? "no" : "an");
  Advance(micro_batch, State::kForwardDone, State::kInputGradDone);
  return options_.first ? Timed<Tensor>{.ready = grad_output.ready}
                        : Message(options_.gradient_bytes, grad_output.ready);
}

absl::StatusOr<Completion> ModelledEngine::BackwardWeight(int32_t micro_batch, int64_t from_ns) {
  Advance(micro_batch, State::kInputGradDone, State::kDone);
  return Completion::At(from_ns);
}

absl::StatusOr<Timed<Tensor>> ModelledEngine::Backward(int32_t micro_batch, Timed<Tensor> grad_output) {
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, BackwardInput(micro_batch, std::move(grad_output)));
  Advance(micro_batch, State::kInputGradDone, State::kDone);
  return grad_input;
}

absl::Status ModelledEngine::AddTiedGradient(Timed<Tensor>) {
  GP_CHECK(false, "a modelled stage shares no embedding");
  return absl::OkStatus();
}

absl::StatusOr<Completion> ModelledEngine::Update(int64_t, std::optional<double>, int64_t from_ns) {
  return Completion::At(from_ns);
}

void ModelledEngine::AbandonIteration() { std::ranges::fill(states_, State::kDone); }

// A message of no bytes is sent as one of one element: it says that the action is done.
absl::StatusOr<Timed<Tensor>> ModelledEngine::Message(int64_t bytes, const Completion& ready) {
  GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kBf16,
                                                    {std::max<int64_t>(1, (bytes + 1) / 2)}));
  return Timed<Tensor>{.value = std::move(message), .ready = ready};
}

void ModelledEngine::Advance(int32_t micro_batch, State from, State to) {
  GP_CHECK(micro_batch >= 0 && micro_batch < options_.micro_batches, "micro-batch {} of {}", micro_batch,
           options_.micro_batches);
  GP_CHECK(states_[micro_batch] == from, "micro-batch {} out of order", micro_batch);
  states_[micro_batch] = to;
}

}  // namespace geopipe
