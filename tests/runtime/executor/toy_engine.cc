#include "tests/runtime/executor/toy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"

namespace geopipe {
namespace {

constexpr double kLearningRate = 0.125;

Completion OverSince(int64_t begun_ns) { return {begun_ns, Clock::Real().NowNs()}; }

}  // namespace

ToyEngine::ToyEngine(const ToyModel& model, const LayerRange& range, Allocator& allocator)
    : model_(model), range_(range), allocator_(allocator) {
  for (int64_t layer = range.first; layer <= range.last; ++layer) {
    weights_.push_back(0.9F + 0.07F * static_cast<float>(layer));
  }
  gradients_.resize(weights_.size());
  if (model.tied) {
    head_ = embedding_;
  }
}

absl::StatusOr<Tensor> ToyEngine::ToTensor(const Values& values) {
  GP_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(allocator_, MemoryCategory::kTransport, DType::kFp32,
                                                    {static_cast<int64_t>(values.size())}));
  std::ranges::copy(values, tensor.fp32().begin());
  return tensor;
}

absl::Status ToyEngine::BeginIteration(int64_t iteration) {
  GP_CHECK(saved_.empty());
  iteration_ = iteration;
  loss_ = 0;
  embedding_gradient_ = head_gradient_ = 0;
  own_tied_joined_ = false;
  std::ranges::fill(gradients_, 0.0F);
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> ToyEngine::Forward(int32_t micro_batch, Timed<Tensor> input) {
  const int64_t begun_ns = Clock::Real().NowNs();
  GP_ASSIGN_OR_RETURN(Tensor output, RunForward(micro_batch, input.value));
  return Timed<Tensor>{.value = std::move(output), .ready = OverSince(begun_ns)};
}

absl::StatusOr<Timed<Tensor>> ToyEngine::BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) {
  const int64_t begun_ns = Clock::Real().NowNs();
  GP_ASSIGN_OR_RETURN(Tensor grad_input, RunBackwardInput(micro_batch, grad_output.value));
  return Timed<Tensor>{.value = std::move(grad_input), .ready = OverSince(begun_ns)};
}

absl::StatusOr<Timed<Tensor>> ToyEngine::Backward(int32_t micro_batch, Timed<Tensor> grad_output) {
  const int64_t begun_ns = Clock::Real().NowNs();
  GP_ASSIGN_OR_RETURN(Timed<Tensor> grad_input, BackwardInput(micro_batch, std::move(grad_output)));
  GP_RETURN_IF_ERROR(BackwardWeight(micro_batch, begun_ns).status());
  grad_input.ready = OverSince(begun_ns);
  return grad_input;
}

ToyEngine::Values ToyEngine::InputOf(int64_t iteration, int32_t micro_batch) const {
  Values x(model_.width);
  for (int64_t i = 0; i < model_.width; ++i) {
    x[i] = 0.1F * static_cast<float>((iteration * 31 + micro_batch * 7 + i * 3) % 11) - 0.4F;
  }
  return x;
}

double ToyEngine::LossOf(const Values& x) const {
  double loss = 0;
  for (const float v : x) {
    loss += static_cast<double>(head_ * v) * static_cast<double>(head_ * v);
  }
  return loss / static_cast<double>(model_.width * model_.micro_batches);
}

absl::Status ToyEngine::BeginEvaluation() {
  GP_CHECK(saved_.empty());
  validation_losses_.assign(model_.micro_batches, 0);
  return absl::OkStatus();
}

absl::StatusOr<Timed<Tensor>> ToyEngine::Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) {
  const int64_t begun_ns = Clock::Real().NowNs();
  if (on_forward_) {
    GP_RETURN_IF_ERROR(on_forward_(kEvaluation, micro_batch));
  }
  GP_CHECK(input.value.empty() == range_.has_embedding);
  Values x(model_.width);
  if (range_.has_embedding) {
    x = InputOf(kFirstOfValidation + pass, micro_batch);
    std::ranges::transform(x, x.begin(), [this](float v) { return v * embedding_; });
  } else {
    std::ranges::copy(input.value.fp32(), x.begin());
  }
  for (const float weight : weights_) {
    std::ranges::transform(x, x.begin(), [weight](float v) { return std::tanh(weight * v); });
  }
  Tensor output;
  if (range_.has_head) {
    validation_losses_[micro_batch] += LossOf(x);
  } else {
    GP_ASSIGN_OR_RETURN(output, ToTensor(x));
  }
  return Timed<Tensor>{.value = std::move(output), .ready = OverSince(begun_ns)};
}

absl::StatusOr<Timed<LossReader>> ToyEngine::EndEvaluation(int64_t passes) {
  return Timed<LossReader>{[this, passes]() -> std::optional<double> {
                             if (!range_.has_head) {
                               return std::nullopt;
                             }
                             return std::accumulate(validation_losses_.begin(), validation_losses_.end(), 0.0) /
                                    static_cast<double>(passes);
                           },
                           {}};
}

absl::StatusOr<Tensor> ToyEngine::RunForward(int32_t micro_batch, const Tensor& input) {
  if (on_forward_) {
    GP_RETURN_IF_ERROR(on_forward_(iteration_, micro_batch));
  }
  GP_CHECK(input.empty() == range_.has_embedding);
  greatest_in_flight_ = std::max(greatest_in_flight_, ++in_flight_);
  Saved& saved = saved_[micro_batch];
  Values x(model_.width);
  if (range_.has_embedding) {
    x = InputOf(iteration_, micro_batch);
    saved.embedded_from = x;
    std::ranges::transform(x, x.begin(), [this](float v) { return v * embedding_; });
  } else {
    std::ranges::copy(input.fp32(), x.begin());
  }
  for (const float weight : weights_) {
    saved.inputs.push_back(x);
    std::ranges::transform(x, x.begin(), [weight](float v) { return std::tanh(weight * v); });
  }
  saved.inputs.push_back(x);
  if (!range_.has_head) {
    return ToTensor(x);
  }
  loss_ += LossOf(x);
  if (diverges_at_.has_value() && iteration_ >= *diverges_at_) {
    loss_ = std::numeric_limits<double>::quiet_NaN();
  }
  return Tensor();
}

absl::StatusOr<Tensor> ToyEngine::RunBackwardInput(int32_t micro_batch, const Tensor& grad_output) {
  GP_CHECK(grad_output.empty() == range_.has_head);
  --in_flight_;
  Saved& saved = saved_.at(micro_batch);
  Values grad(model_.width);
  if (range_.has_head) {
    const Values& x = saved.inputs.back();
    const auto scale = 2.0F / static_cast<float>(model_.width * model_.micro_batches);
    saved.head_grad.resize(model_.width);
    for (int64_t i = 0; i < model_.width; ++i) {
      saved.head_grad[i] = scale * head_ * x[i];
      grad[i] = saved.head_grad[i] * head_;
    }
  } else {
    std::ranges::copy(grad_output.fp32(), grad.begin());
  }
  saved.grads.resize(weights_.size());
  for (size_t layer = weights_.size(); layer-- > 0;) {
    for (int64_t i = 0; i < model_.width; ++i) {
      const float y = saved.inputs[layer + 1][i];
      grad[i] *= 1.0F - y * y;
    }
    saved.grads[layer] = grad;
    std::ranges::transform(grad, grad.begin(), [&](float v) { return v * weights_[layer]; });
  }
  if (range_.has_embedding) {
    saved.embedding_grad = grad;
    return Tensor();
  }
  return ToTensor(grad);
}

absl::StatusOr<Completion> ToyEngine::BackwardWeight(int32_t micro_batch, int64_t) {
  const int64_t begun_ns = Clock::Real().NowNs();
  const Saved saved = std::move(saved_.extract(micro_batch).mapped());
  for (int64_t i = 0; i < model_.width; ++i) {
    for (size_t layer = 0; layer < weights_.size(); ++layer) {
      gradients_[layer] += saved.grads[layer][i] * saved.inputs[layer][i];
    }
    head_gradient_ += range_.has_head ? saved.head_grad[i] * saved.inputs.back()[i] : 0.0F;
    embedding_gradient_ += range_.has_embedding ? saved.embedding_grad[i] * saved.embedded_from[i] : 0.0F;
  }
  return OverSince(begun_ns);
}

void ToyEngine::JoinOwnTied() {
  if (model_.tied && range_.has_embedding && range_.has_head && !own_tied_joined_) {
    embedding_gradient_ = head_gradient_ = embedding_gradient_ + head_gradient_;
    own_tied_joined_ = true;
  }
}

absl::StatusOr<Timed<ScalarReader>> ToyEngine::ReadScalars(bool norm_terms) {
  IterationScalars scalars;
  if (range_.has_head) {
    scalars.loss = loss_;
  }
  const auto reader = [&scalars] { return Timed<ScalarReader>{[scalars] { return scalars; }, {}}; };
  if (!norm_terms) {
    return reader();
  }
  const auto add = [&](std::string name, float gradient) {
    scalars.norm_terms.push_back({std::move(name), static_cast<double>(gradient) * static_cast<double>(gradient)});
  };
  JoinOwnTied();
  if (gradient_diverges_at_.has_value() && iteration_ >= *gradient_diverges_at_) {
    gradients_.front() = std::numeric_limits<float>::quiet_NaN();
  }
  if (range_.has_embedding) {
    add("embedding", embedding_gradient_);
  }
  for (size_t layer = 0; layer < weights_.size(); ++layer) {
    add(fmt::format("layers.{}", range_.first + static_cast<int64_t>(layer)), gradients_[layer]);
  }
  if (range_.has_head && !model_.tied) {
    add("head", head_gradient_);
  }
  return reader();
}

absl::StatusOr<std::optional<Timed<Tensor>>> ToyEngine::TakeTiedGradient() {
  if (!tied_elsewhere()) {
    return std::nullopt;
  }
  auto tensor = ToTensor({range_.has_embedding ? embedding_gradient_ : head_gradient_});
  GP_CHECK(tensor.ok());
  return Timed<Tensor>{*std::move(tensor), OverSince(Clock::Real().NowNs())};
}

absl::Status ToyEngine::AddTiedGradient(Timed<Tensor> other) {
  const float theirs = other.value.fp32()[0];
  const float of_embedding = range_.has_embedding ? embedding_gradient_ : theirs;
  const float of_head = range_.has_embedding ? theirs : head_gradient_;
  embedding_gradient_ = head_gradient_ = of_embedding + of_head;
  return absl::OkStatus();
}

absl::StatusOr<Completion> ToyEngine::Update(int64_t, std::optional<double> grad_norm, int64_t) {
  const int64_t begun_ns = Clock::Real().NowNs();
  JoinOwnTied();
  const double clip = grad_norm.has_value() ? std::min(1.0, 0.5 / (*grad_norm + 1e-6)) : 1.0;
  const auto step = static_cast<float>(kLearningRate * clip);
  for (size_t layer = 0; layer < weights_.size(); ++layer) {
    weights_[layer] -= step * gradients_[layer];
  }
  embedding_ -= step * embedding_gradient_;
  head_ -= step * head_gradient_;
  return OverSince(begun_ns);
}

void ToyEngine::AbandonIteration() {
  saved_.clear();
  in_flight_ = 0;
}

}  // namespace geopipe
