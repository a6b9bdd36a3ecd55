// Runs the stages of a model in one thread, in the order that a test chooses: what executor and transport do for real.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "runtime/model/transformer_stage.h"
#include "tests/runtime/model/small_models.h"
#include "tests/support/seeded_device.h"

namespace geopipe {

// kGpipe: all forwards, then all backwards. k1F1B: P - 1 - p forwards ahead. kDelayedWeights: 1F1B with every W at the
// end.
enum class DriveOrder : uint8_t { kGpipe, k1F1B, kDelayedWeights };

struct IterationResult {
  double loss = 0;
  double grad_norm = 0;

  friend bool operator==(const IterationResult&, const IterationResult&) = default;
};

// A device other than the processor, and what makes its backends.
struct DriverDevice {
  Device& device;
  std::function<std::unique_ptr<Backend>(Allocator&)> open_backend;
};
DriverDevice On(SeededDevice& device);

class PipelineDriver {
 public:
  // One stage, with its own allocator and backend, per entry of `split`; all on `device` where there is one, else on
  // the processor. `options.layers` is ignored.
  PipelineDriver(const TransformerStageOptions& options, const std::vector<LayerRange>& split, TokenSource& tokens,
                 WeightSource& weights, const std::optional<DriverDevice>& device = std::nullopt);

  // Forwards and backwards of all micro-batches; gradients are complete afterwards, nothing is updated.
  void Accumulate(int64_t iteration, DriveOrder order);
  // Accumulate, the norm over all stages in order of the names, Update.
  IterationResult Iterate(int64_t iteration, DriveOrder order);

  // Scalars of stage i, once its device has done all that it was given.
  IterationScalars Scalars(size_t i, bool norm_terms);
  double Loss() { return *Scalars(size() - 1, /*norm_terms=*/false).loss; }
  // Gradient or value at the stage that accounts for it.
  std::vector<float> Gradient(std::string_view name);
  std::vector<float> Value(std::string_view name);

  size_t size() const { return stages_.size(); }
  Backend& backend(size_t i) { return *backends_[i]; }
  TransformerStage& stage(size_t i) { return *stages_[i]; }
  Allocator& allocator(size_t i) { return *allocators_[i]; }

 private:
  struct Action {
    char kind;  // F, I or W
    int32_t micro_batch;
  };
  std::vector<Action> ActionsOf(size_t stage, DriveOrder order) const;
  // Runs the action. False when its input has not arrived.
  bool Run(size_t stage, const Action& action);
  void JoinTiedGradients();

  TransformerStageOptions options_;
  std::vector<std::unique_ptr<Allocator>> allocators_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<SharedRooms>> rooms_;
  std::vector<std::unique_ptr<TransformerStage>> stages_;
  std::vector<std::vector<Timed<Tensor>>> activations_;  // [stage][micro-batch]: what stage - 1 sent
  std::vector<std::vector<Timed<Tensor>>> gradients_;    // [stage][micro-batch]: what stage + 1 sent
};

}  // namespace geopipe
