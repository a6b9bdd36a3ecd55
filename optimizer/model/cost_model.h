// Durations of the model's parts on a device by an analytic roofline. cost_source.h prefers measurements.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "optimizer/model/cluster.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/transformer.h"

namespace geopipe {

// The job's choices together with a micro-batch size, a sequence length, a recompute mode and a ZeRO stage (which
// counts with several replicas alone). `auto` (0) for tensor and data is 1, which is what the training engine runs.
ExecutionConfig MakeExecutionConfig(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length,
                                    Recompute recompute, int32_t zero_stage = 0);

// Rows at which a product reaches half of the device's best throughput.
inline constexpr double kHalfEfficiencyTokens = 256;

// The same where traffic, which slows small products down, is counted operation by operation: on an H200 products of
// 4,096 rows are as fast as those of 8,192.
inline constexpr double kHalfEfficiencyTokensOfOperation = 64;

// Share of peak_flops that products over `tokens` rows reach: device.efficiency * tokens / (tokens + 256), or + 64 by
// operation, because small products cannot fill the device.
double Efficiency(const DeviceSpec& device, int64_t tokens);

// Share of device.efficiency that attention's products reach where the device does not say: 0.42 of A100s and 0.31 of
// H100s in the runs that llm-foundry publishes (docs/published.md). Newer kernels reach more: FlashAttention 25 to 40 %
// of an A100's peak, FlashAttention-2 50 to 73 % of it and 35 % of an H100's, FlashAttention-3 57 to 62 % (arXiv
// 2307.08691 and 2407.08608).
inline constexpr double kAttentionShare = 0.35;

// Keys at which attention reaches half of what it does over long sequences, and size of heads at which it reaches half
// of its greatest; kFullHead and more do not gain. Of FlashAttention-2, -3 and cuDNN on an H100, causal, over 512 to
// 16,384 tokens and heads of 64, 128 and 256 (arXiv 2407.08608, figures 5 and 6).
inline constexpr double kHalfEfficiencyKeys = 256;
inline constexpr double kHalfEfficiencyHead = 32;
inline constexpr int64_t kFullHead = 128;

// Shape of the products of a part of the model.
struct ProductShape {
  int64_t tokens = 0;  // rows
  int64_t sequence_length = 0;
  int64_t head_dim = 0;

  static ProductShape Of(const ModelSpec& model, const ExecutionConfig& config) {
    return {config.tokens(), config.sequence_length, model.head_dim()};
  }
};

// Part of its efficiency that attention reaches over such sequences and heads.
double AttentionShapeShare(const ProductShape& shape);

// Share of peak_flops that attention's products reach.
double AttentionEfficiency(const DeviceSpec& device, const ProductShape& shape);

// Roofline (Williams et al., 2009): max(FLOPs / (peak * efficiency), bytes / memory bandwidth), attention's FLOPs at
// its own efficiency: of all the work at once, or, by device.roofline, of products with weights, of attention, and of
// the other bytes, one after the other. REQUIRES: peak_flops and memory_bandwidth positive.
double RooflineSeconds(const Work& work, const DeviceSpec& device, const ProductShape& shape);

// Duration of a part from which on it is an error.
inline constexpr double kLongestPartSeconds = 1e6;

// One ring all-reduce of `bytes` over `ranks`, or one all-gather plus one reduce-scatter: every rank sends and receives
// 2 * (ranks - 1) / ranks * bytes. Zero for one rank. REQUIRES: bandwidth positive when ranks > 1.
double AllReduceSeconds(int64_t bytes, int64_t ranks, double bandwidth_bytes_per_s);

// The replicas of a stage as one of its devices sees them: each reduces with those at its own tensor coordinate.
struct ReplicaGroup {
  int64_t nodes = 1;
  int64_t max_per_node = 1;                  // replicas on the node that has most
  int64_t min_per_node = 1;                  // and least
  double node_bandwidth_bytes_per_s = 0;     // between devices of a node
  double network_bandwidth_bytes_per_s = 0;  // of one device, while all of its node use the network
  int64_t network_latency_ns = 0;

  friend bool operator==(const ReplicaGroup&, const ReplicaGroup&) = default;
};

// Seconds of a hierarchical all-reduce, half of it a reduce-scatter and half an all-gather: within each node, then of
// each replica's share over the nodes, both in a ring (arXiv 1807.11205). Zero for one replica.
double AllReduceSeconds(int64_t bytes, const ReplicaGroup& replicas);

enum class ModelPart : uint8_t { kEmbedding, kBlock, kHead };
enum class PartAction : uint8_t { kForward, kInputGrad, kWeightGrad };
inline constexpr std::array kModelParts{ModelPart::kEmbedding, ModelPart::kBlock, ModelPart::kHead};
inline constexpr std::array kPartActions{PartAction::kForward, PartAction::kInputGrad, PartAction::kWeightGrad};

// One value for each action of each part.
template <typename T>
class PartTable {
 public:
  T& at(ModelPart part, PartAction action) { return values_[Index(part, action)]; }
  const T& at(ModelPart part, PartAction action) const { return values_[Index(part, action)]; }
  friend bool operator==(const PartTable&, const PartTable&) = default;

 private:
  static constexpr size_t Index(ModelPart part, PartAction action) {
    return static_cast<size_t>(part) * kPartActions.size() + static_cast<size_t>(action);
  }
  std::array<T, kModelParts.size() * kPartActions.size()> values_{};
};

// The work of one action of one part on one micro-batch.
struct Demand {
  Work work;
  int64_t collective_bytes = 0;  // all-reduced over the tensor-parallel ranks, counted once for each all-reduce

  friend bool operator==(const Demand&, const Demand&) = default;
};

// Demands of all parts. Tensor ranks sum the results of o and down in F, and the gradients of both halves' inputs in I:
// two all-reduces of b*s*h per layer each (Megatron, arXiv 1909.08053); with sequence parallelism each is a
// reduce-scatter, and a gather of rows stands before both halves, in W too, which gathers the inputs that are kept in
// slices (arXiv 2205.05198). Full recomputation repeats F's but for down's sum. The embedding has one sum in F and a
// gather in I; the head a gather in F and W, a sum in I, and the loss's.
PartTable<Demand> DemandsOf(const ModelSpec& model, const ExecutionConfig& config);

// Durations of the model's parts on one device for one micro-batch: roofline plus tensor-parallel
// collectives. The fields of a PartCosts are the analytic counterpart of a ProfileEntry's. InvalidArgument names the
// site and the device figure that is missing.
struct ModelCosts {
  PartCosts embedding;
  PartCosts block;
  PartCosts head;
  double adamw_ns_per_parameter = 0;  // 28 bytes moved per parameter: gradient, master weight, two moments; weight

  int64_t& at(ModelPart part, PartAction action);
  int64_t at(ModelPart part, PartAction action) const;

  friend bool operator==(const ModelCosts&, const ModelCosts&) = default;
};
absl::StatusOr<ModelCosts> AnalyticCosts(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site);

}  // namespace geopipe
