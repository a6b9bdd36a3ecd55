// Runs the stages of a model in one thread, in the order that a test chooses: what executor and transport do for real.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"
#include "tests/support/seeded_device.h"

namespace geopipe {

// Tokens drawn at random per (iteration, sample), whatever the order of reading.
class RandomTokens final : public TokenSource {
 public:
  RandomTokens(int64_t vocab_size, int64_t sequence_length) : vocab_size_(vocab_size), sequence_(sequence_length) {}

  absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override;

 private:
  int64_t vocab_size_;
  int64_t sequence_;
};

// Weights far larger than a fresh model's, norms unlike 1: every path carries a gradient.
class LargeRandomWeights final : public WeightSource {
 public:
  explicit LargeRandomWeights(uint64_t seed) : random_(seed) {}

  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;

 private:
  RandomWeights random_;
};

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

// `stages` stages over the model's layers, as even as the planner makes them.
std::vector<LayerRange> Split(const ModelSpec& model, int64_t stages);

// Gives a model what other families have: `variant` 0 nothing, 1 biases of q, k and v, 2 norms of heads that are not
// hidden / heads wide, 3 biases of all four, a padded vocabulary and llama3's frequencies, 4 all of these but biases of
// q, k and v alone.
inline constexpr int kFamilyVariants = 5;
void SetFamily(int variant, ModelSpec& model);

// A small model with grouped-query heads, two micro-batches per iteration and every feature of the update in use.
TransformerStageOptions SmallOptions(bool tied);

}  // namespace geopipe
