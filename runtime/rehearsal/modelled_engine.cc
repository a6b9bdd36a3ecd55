#include "runtime/rehearsal/modelled_engine.h"

#include <algorithm>

#include "optimizer/base/check.h"

namespace geopipe {

ModelledEngine::ModelledEngine(const Options& options, Allocator& allocator)
    : options_(options), allocator_(allocator), states_(options.micro_batches, State::kDone) {}

absl::Status ModelledEngine::BeginIteration(int64_t) {
  GP_CHECK(std::ranges::all_of(states_, [](State state) { return state == State::kDone; }), "iteration not finished");
  std::ranges::fill(states_, State::kNew);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ModelledEngine::Forward(int32_t micro_batch, Tensor input) {
  GP_CHECK(input.empty() == options_.first, "F{} has {} input", micro_batch, input.empty() ? "no" : "an");
  Advance(micro_batch, State::kNew, State::kForwardDone);
  return options_.last ? Tensor() : Message(options_.activation_bytes);
}

absl::StatusOr<Tensor> ModelledEngine::BackwardInput(int32_t micro_batch, Tensor grad_output) {
  GP_CHECK(grad_output.empty() == options_.last, "I{} has {} input", micro_batch, grad_output.empty() ? "no" : "an");
  Advance(micro_batch, State::kForwardDone, State::kInputGradDone);
  return options_.first ? Tensor() : Message(options_.gradient_bytes);
}

absl::Status ModelledEngine::BackwardWeight(int32_t micro_batch) {
  Advance(micro_batch, State::kInputGradDone, State::kDone);
  return absl::OkStatus();
}

absl::Status ModelledEngine::AddTiedGradient(Tensor) {
  GP_CHECK(false, "a modelled stage shares no embedding");
  return absl::OkStatus();
}

absl::Status ModelledEngine::Update(int64_t, std::optional<double>) { return absl::OkStatus(); }

// A message of no bytes still is one byte: it says that the action is done.
absl::StatusOr<Tensor> ModelledEngine::Message(int64_t bytes) {
  return Tensor::Zeros(allocator_, MemoryCategory::kTransport, DType::kBf16, {std::max<int64_t>(1, (bytes + 1) / 2)});
}

void ModelledEngine::Advance(int32_t micro_batch, State from, State to) {
  GP_CHECK(micro_batch >= 0 && micro_batch < options_.micro_batches, "micro-batch {} of {}", micro_batch,
           options_.micro_batches);
  GP_CHECK(states_[micro_batch] == from, "micro-batch {} out of order", micro_batch);
  states_[micro_batch] = to;
}

}  // namespace geopipe
