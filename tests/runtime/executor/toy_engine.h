// A tiny model with true gradients, for the executor's tests: a chain of scalar layers y = tanh(w * x), with an
// embedding and a head, whose losses are the same bits only if every message and every gradient arrives, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"

namespace geopipe {

struct ToyModel {
  int64_t layers = 6;
  int64_t width = 5;  // elements of an activation
  int32_t micro_batches = 8;
  bool tied = false;
};

// Layers `range` of the model. The embedding multiplies the micro-batch's input (a function of iteration and
// micro-batch) by a scalar, the head multiplies the last activation by another, or by the same when tied; the loss is
// the mean of the squares. Gradient descent.
class ToyEngine final : public StageEngine {
 public:
  ToyEngine(const ToyModel& model, const LayerRange& range, Allocator& allocator);

  absl::Status BeginIteration(int64_t iteration) override;
  absl::StatusOr<Timed<Tensor>> Forward(int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<Tensor>> BackwardInput(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Timed<Tensor>> Backward(int32_t micro_batch, Timed<Tensor> grad_output) override;
  absl::StatusOr<Completion> BackwardWeight(int32_t micro_batch, int64_t from_ns) override;
  absl::StatusOr<std::optional<Timed<Tensor>>> TakeTiedGradient() override;
  absl::Status AddTiedGradient(Timed<Tensor> other) override;
  absl::StatusOr<Timed<ScalarReader>> ReadScalars(bool norm_terms) override;
  absl::StatusOr<Completion> Update(int64_t iteration, std::optional<double> grad_norm, int64_t from_ns) override;
  absl::Status BeginEvaluation() override;
  absl::StatusOr<Timed<Tensor>> Evaluate(int64_t pass, int32_t micro_batch, Timed<Tensor> input) override;
  absl::StatusOr<Timed<LossReader>> EndEvaluation(int64_t passes) override;
  void AbandonIteration() override;

  // Pass p of an evaluation has the input of iteration kFirstOfValidation + p.
  static constexpr int64_t kFirstOfValidation = 1000;
  // Greatest number of micro-batches between F and I at once.
  int64_t greatest_in_flight() const { return greatest_in_flight_; }
  // Called at the start of every forward, to disturb the run; of an evaluation with this iteration.
  static constexpr int64_t kEvaluation = -1;
  void set_on_forward(std::function<absl::Status(int64_t iteration, int32_t micro_batch)> on_forward) {
    on_forward_ = std::move(on_forward);
  }
  // Makes the loss not a number from this iteration on.
  void set_diverges_at(int64_t iteration) { diverges_at_ = iteration; }
  // Makes the gradient of its first layer not a number from this iteration on.
  void set_gradient_diverges_at(int64_t iteration) { gradient_diverges_at_ = iteration; }

 private:
  using Values = std::vector<float>;
  struct Saved {
    Values embedded_from;        // input of the embedding
    std::vector<Values> inputs;  // of each layer, then of the head
    std::vector<Values> grads;   // of each layer's product w * x, kept from I to W
    Values head_grad;
    Values embedding_grad;
  };

  bool tied_elsewhere() const { return model_.tied && range_.has_embedding != range_.has_head; }
  void JoinOwnTied();
  Values InputOf(int64_t iteration, int32_t micro_batch) const;
  double LossOf(const Values& x) const;
  absl::StatusOr<Tensor> ToTensor(const Values& values);
  absl::StatusOr<Tensor> RunForward(int32_t micro_batch, const Tensor& input);
  absl::StatusOr<Tensor> RunBackwardInput(int32_t micro_batch, const Tensor& grad_output);

  const ToyModel model_;
  const LayerRange range_;
  Allocator& allocator_;
  int64_t iteration_ = 0;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  float embedding_ = 1.5F;
  float head_ = 0.75F;
  float embedding_gradient_ = 0;
  float head_gradient_ = 0;
  bool own_tied_joined_ = false;
  double loss_ = 0;
  std::vector<double> validation_losses_;  // by micro-batch, over the passes
  std::map<int32_t, Saved> saved_;
  int64_t in_flight_ = 0;
  int64_t greatest_in_flight_ = 0;
  std::optional<int64_t> diverges_at_;
  std::optional<int64_t> gradient_diverges_at_;
  std::function<absl::Status(int64_t, int32_t)> on_forward_;
};

}  // namespace geopipe
