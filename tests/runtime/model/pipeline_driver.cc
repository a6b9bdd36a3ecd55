#include "tests/runtime/model/pipeline_driver.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "runtime/tensor/staging.h"

namespace geopipe {

namespace {

std::vector<float> ValuesOf(const Tensor& tensor) {
  std::vector<float> values;
  REQUIRE(ReadOnHost(tensor, [&](const Tensor& host) { values.assign(host.fp32().begin(), host.fp32().end()); }).ok());
  return values;
}

}  // namespace

DriverDevice On(SeededDevice& device) {
  return {device, [&device](Allocator& memory) { return std::make_unique<SeededBackend>(device, memory); }};
}

PipelineDriver::PipelineDriver(const TransformerStageOptions& options, const std::vector<LayerRange>& split,
                               TokenSource& tokens, WeightSource& weights, const std::optional<DriverDevice>& device)
    : options_(options), activations_(split.size()), gradients_(split.size()) {
  for (const LayerRange& layers : split) {
    allocators_.push_back(
        std::make_unique<Allocator>(int64_t{1} << 30, device.has_value() ? device->device : HostDevice()));
    Allocator& memory = *allocators_.back();
    backends_.push_back(device.has_value() ? device->open_backend(memory) : *CpuBackend::Create(/*threads=*/1, memory));
    options_.layers = layers;
    rooms_.push_back(std::make_unique<SharedRooms>(memory, /*max_run_elements=*/100));
    auto stage = TransformerStage::Create(options_, memory, *backends_.back(), &tokens, weights, rooms_.back().get());
    INFO(stage.status());
    REQUIRE(stage.ok());
    stages_.push_back(*std::move(stage));
  }
}

std::vector<PipelineDriver::Action> PipelineDriver::ActionsOf(size_t stage, DriveOrder order) const {
  const int32_t m = options_.micro_batches;
  const auto ahead = static_cast<int32_t>(stages_.size() - 1 - stage);
  const int32_t warmup = order == DriveOrder::kGpipe ? m : std::min(m, ahead);
  const bool delayed = order == DriveOrder::kDelayedWeights;
  std::vector<Action> actions;
  int32_t forward = 0;
  for (; forward < warmup; ++forward) {
    actions.push_back({'F', forward});
  }
  for (int32_t backward = 0; backward < m; ++backward) {
    if (forward < m) {
      actions.push_back({'F', forward++});
    }
    actions.push_back({'I', backward});
    if (!delayed) {
      actions.push_back({'W', backward});
    }
  }
  for (int32_t i = 0; delayed && i < m; ++i) {
    actions.push_back({'W', i});
  }
  return actions;
}

bool PipelineDriver::Run(size_t stage, const Action& action) {
  const int32_t i = action.micro_batch;
  const bool first = stage == 0;
  const bool last = stage + 1 == stages_.size();
  if (action.kind == 'F') {
    if (!first && activations_[stage][i].value.empty()) {
      return false;
    }
    auto output = stages_[stage]->Forward(i, std::exchange(activations_[stage][i], {}));
    REQUIRE(output.ok());
    REQUIRE(output->value.empty() == last);
    if (!last) {
      activations_[stage + 1][i] = *std::move(output);
    }
  } else if (action.kind == 'I') {
    if (!last && gradients_[stage][i].value.empty()) {
      return false;
    }
    auto gradient = stages_[stage]->BackwardInput(i, std::exchange(gradients_[stage][i], {}));
    REQUIRE(gradient.ok());
    REQUIRE(gradient->value.empty() == first);
    if (!first) {
      gradients_[stage - 1][i] = *std::move(gradient);
    }
  } else {
    REQUIRE(stages_[stage]->BackwardWeight(i, 0).ok());
  }
  return true;
}

void PipelineDriver::JoinTiedGradients() {
  std::optional<Timed<Tensor>> embedding_use = stages_.front()->TakeTiedGradient().value();
  std::optional<Timed<Tensor>> head_use = stages_.back()->TakeTiedGradient().value();
  REQUIRE(embedding_use.has_value() == head_use.has_value());
  REQUIRE(embedding_use.has_value() == (options_.model.tie_word_embeddings && stages_.size() > 1));
  if (embedding_use.has_value()) {
    const absl::Status first = stages_.front()->AddTiedGradient(*std::move(head_use));
    const absl::Status last = stages_.back()->AddTiedGradient(*std::move(embedding_use));
    REQUIRE(first.ok());
    REQUIRE(last.ok());
  }
}

void PipelineDriver::Accumulate(int64_t iteration, DriveOrder order) {
  std::vector<std::vector<Action>> actions;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    REQUIRE(stages_[stage]->BeginIteration(iteration).ok());
    actions.push_back(ActionsOf(stage, order));
    activations_[stage].resize(options_.micro_batches);
    gradients_[stage].resize(options_.micro_batches);
  }
  std::vector<size_t> next(stages_.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next[stage] < actions[stage].size() && Run(stage, actions[stage][next[stage]])) {
        ++next[stage];
        progress = true;
      }
    }
  }
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    REQUIRE(next[stage] == actions[stage].size());
  }
  JoinTiedGradients();
}

IterationScalars PipelineDriver::Scalars(size_t i, bool norm_terms) {
  const absl::StatusOr<Timed<ScalarReader>> reader = stages_[i]->ReadScalars(norm_terms);
  REQUIRE(reader.ok());
  REQUIRE(allocators_[i]->device().Wait(reader->ready, DeviceDeadlineNs()).ok());
  return reader->value();
}

IterationResult PipelineDriver::Iterate(int64_t iteration, DriveOrder order) {
  Accumulate(iteration, order);
  std::vector<NormTerm> terms;
  double loss = 0;
  for (size_t i = 0; i < size(); ++i) {
    const IterationScalars own = Scalars(i, /*norm_terms=*/true);
    loss = own.loss.value_or(loss);
    terms.insert(terms.end(), own.norm_terms.begin(), own.norm_terms.end());
  }
  std::ranges::sort(terms, {}, &NormTerm::name);
  REQUIRE(std::ranges::adjacent_find(terms, {}, &NormTerm::name) == terms.end());
  double squares = 0;
  for (const NormTerm& term : terms) {
    squares += term.sum_of_squares;
  }
  const double norm = std::sqrt(squares);
  for (const auto& stage : stages_) {
    REQUIRE(stage->Update(iteration, options_.training.grad_clip ? std::optional(norm) : std::nullopt, 0).ok());
  }
  return {.loss = loss, .grad_norm = norm};
}

std::vector<float> PipelineDriver::Gradient(std::string_view name) {
  for (size_t i = 0; i < size(); ++i) {
    (void)Scalars(i, /*norm_terms=*/false);  // a tied gradient is complete from here on
    if (const Parameter* parameter = stage(i).parameters().Find(name); parameter != nullptr) {
      return ValuesOf(parameter->gradient);
    }
  }
  FAIL("no stage holds " << name);
  return {};
}

std::vector<float> PipelineDriver::Value(std::string_view name) {
  for (const auto& stage : stages_) {
    if (const Parameter* parameter = stage->parameters().Find(name); parameter != nullptr) {
      return ValuesOf(parameter->value);
    }
  }
  FAIL("no stage holds " << name);
  return {};
}

}  // namespace geopipe
