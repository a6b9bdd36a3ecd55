#include "runtime/model/stage_profiler.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/model/init.h"
#include "runtime/model/transformer_stage.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// Tokens spread over the vocabulary by a multiplicative hash.
class SpreadTokens final : public TokenSource {
 public:
  explicit SpreadTokens(int64_t vocab_size) : vocab_size_(vocab_size) {}

  absl::Status Read(int64_t /*iteration*/, int64_t /*first_sample*/, int64_t /*samples*/, std::span<int32_t> inputs,
                    std::span<int32_t> targets) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = Token(i);
      targets[i] = Token(i + 1);
    }
    return absl::OkStatus();
  }

 private:
  int32_t Token(uint64_t i) const {
    return static_cast<int32_t>((i * 0x9E3779B97F4A7C15ULL >> 32) % static_cast<uint64_t>(vocab_size_));
  }

  int64_t vocab_size_;
};

int64_t Median(std::vector<int64_t>& samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::ranges::nth_element(samples, middle);
  return *middle;
}

struct PartSamples {
  std::vector<int64_t> forward_ns;
  std::vector<int64_t> input_grad_ns;
  std::vector<int64_t> weight_grad_ns;
  std::vector<int64_t> update_ns;

  void Clear() { *this = PartSamples(); }
  PartCosts Medians() { return {Median(forward_ns), Median(input_grad_ns), Median(weight_grad_ns)}; }
};

// A message like a neighbour's, with values of an activation's magnitude.
absl::StatusOr<Tensor> Message(const StageProfilerOptions& options, Allocator& allocator, Backend& backend) {
  const int64_t tokens = options.micro_batch_size * options.sequence_length;
  const std::vector<int64_t> shape{tokens, options.model.hidden_size};
  GP_ASSIGN_OR_RETURN(Tensor values, Tensor::Create(allocator, MemoryCategory::kTransport, DType::kFp32, shape));
  GP_RETURN_IF_ERROR(FillFromHost(values, [](const Tensor& host) {
    float value = -1;
    for (float& element : host.fp32()) {
      element = value;
      value = value > 1 ? -1 : value + 0.01F;
    }
    return absl::OkStatus();
  }));
  if (options.precision == Precision::kFp32) {
    return values;
  }
  GP_ASSIGN_OR_RETURN(Tensor message, Tensor::Create(allocator, MemoryCategory::kTransport, DType::kBf16, shape));
  GP_RETURN_IF_ERROR(backend.Convert(ViewOf(values), ViewOf(message)));
  return message;
}

absl::Status MeasureOnce(const StageProfilerOptions& options, const LayerRange& layers, Allocator& allocator,
                         Backend& backend, Clock& clock, TransformerStage& stage, PartSamples& samples) {
  GP_RETURN_IF_ERROR(stage.BeginIteration(0));
  Tensor input;
  Tensor grad_output;
  if (!layers.has_embedding) {
    GP_ASSIGN_OR_RETURN(input, Message(options, allocator, backend));
  }
  if (!layers.has_head) {
    GP_ASSIGN_OR_RETURN(grad_output, Message(options, allocator, backend));
  }
  // Time at which the device has done all work it was given: one action of one block at most.
  Device& device = allocator.device();
  const auto done_ns = [&]() -> absl::StatusOr<int64_t> {
    GP_RETURN_IF_ERROR(device.WaitIdle(SetUpDeadlineNs()));
    return clock.NowNs();
  };
  GP_ASSIGN_OR_RETURN(const int64_t start_ns, done_ns());
  GP_RETURN_IF_ERROR(stage.Forward(0, {.value = std::move(input)}).status());
  GP_ASSIGN_OR_RETURN(const int64_t forward_ns, done_ns());
  GP_RETURN_IF_ERROR(stage.BackwardInput(0, {.value = std::move(grad_output)}).status());
  GP_ASSIGN_OR_RETURN(const int64_t input_grad_ns, done_ns());
  GP_RETURN_IF_ERROR(stage.BackwardWeight(0, 0).status());
  GP_ASSIGN_OR_RETURN(const int64_t weight_grad_ns, done_ns());
  GP_RETURN_IF_ERROR(stage.ReadScalars(/*norm_terms=*/true).status());
  GP_RETURN_IF_ERROR(stage.Update(0, 1.0, 0).status());
  GP_RETURN_IF_ERROR(stage.BeginIteration(1));
  GP_ASSIGN_OR_RETURN(const int64_t update_ns, done_ns());
  samples.forward_ns.push_back(forward_ns - start_ns);
  samples.input_grad_ns.push_back(input_grad_ns - forward_ns);
  samples.weight_grad_ns.push_back(weight_grad_ns - input_grad_ns);
  samples.update_ns.push_back(update_ns - weight_grad_ns);
  return absl::OkStatus();
}

// One part of the model; `adamw_ns_per_million` may be null.
absl::StatusOr<PartCosts> ProfilePart(const StageProfilerOptions& options, const LayerRange& layers,
                                      Allocator& allocator, Backend& backend, Clock& clock,
                                      int64_t* adamw_ns_per_million) {
  TransformerStageOptions stage_options;
  stage_options.model = options.model;
  stage_options.layers = layers;
  stage_options.micro_batch_size = options.micro_batch_size;
  stage_options.sequence_length = options.sequence_length;
  stage_options.micro_batches = 1;
  stage_options.sharding.precision = options.precision;
  stage_options.model.tie_word_embeddings = false;  // the same work, and no other end to wait for
  stage_options.training.iterations = 1;
  stage_options.training.tokens_per_iteration = options.micro_batch_size * options.sequence_length;
  SpreadTokens tokens(options.model.vocab_size);
  RandomWeights weights(/*seed=*/1);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<TransformerStage> stage,
                      TransformerStage::Create(stage_options, allocator, backend, &tokens, weights));
  PartSamples samples;
  GP_RETURN_IF_ERROR(MeasureOnce(options, layers, allocator, backend, clock, *stage, samples));
  samples.Clear();
  const int64_t end_ns = clock.NowNs() + options.time_budget_ns / 3;
  for (int32_t i = 0; i < options.min_repetitions || (i < options.max_repetitions && clock.NowNs() < end_ns); ++i) {
    GP_RETURN_IF_ERROR(MeasureOnce(options, layers, allocator, backend, clock, *stage, samples));
  }
  if (adamw_ns_per_million != nullptr) {
    int64_t parameters = 0;
    for (const Parameter& parameter : stage->parameters().all()) {
      parameters += parameter.value.elements();
    }
    *adamw_ns_per_million =
        static_cast<int64_t>(static_cast<double>(Median(samples.update_ns)) * 1e6 / static_cast<double>(parameters));
  }
  return samples.Medians();
}

}  // namespace

absl::StatusOr<StageProfile> ProfileStage(const StageProfilerOptions& options, Allocator& allocator, Backend& backend,
                                          Clock& clock) {
  const LayerRange embedding{.has_embedding = true};
  const LayerRange block{.first = 0, .last = 0};
  const LayerRange head{.has_head = true};
  StageProfile profile;
  GP_ASSIGN_OR_RETURN(profile.embedding, ProfilePart(options, embedding, allocator, backend, clock, nullptr));
  GP_ASSIGN_OR_RETURN(profile.block,
                      ProfilePart(options, block, allocator, backend, clock, &profile.adamw_ns_per_million_parameters));
  GP_ASSIGN_OR_RETURN(profile.head, ProfilePart(options, head, allocator, backend, clock, nullptr));
  return profile;
}

}  // namespace geopipe
