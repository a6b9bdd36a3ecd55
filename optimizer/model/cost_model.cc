#include "optimizer/model/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/pipeline_costs.h"

namespace geopipe {
namespace {

// Read: gradient, weight, two moments; written: weight, two moments; in bf16 also the weight that computes.
constexpr double kAdamWBytesPerParameter = 28;
constexpr double kComputeWeightBytes = 2;
// Numbers of each row that tensor ranks reduce for the loss: the greatest logit, the sum of exponentials, the target's.
constexpr int64_t kLossExchanges = 3;

absl::Status RequireFigure(const SiteSpec& site, std::string_view key, double value) {
  if (value > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("site \"{}\": device.{} is {}, and no profile replaces the cost model; give the figure or a profile",
                  site.name, key, value));
}

absl::StatusOr<int64_t> PartNs(const ModelSpec& model, const Demand& demand, const ExecutionConfig& config,
                               const SiteSpec& site) {
  double seconds = RooflineSeconds(demand.work, site.device, ProductShape::Of(model, config));
  seconds += AllReduceSeconds(demand.collective_bytes, config.tensor, site.device.intra_node_bandwidth_bytes_per_s);
  if (!(seconds < kLongestPartSeconds)) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": one micro-batch would take {} s in one part of the model; its device figures are "
                    "too small",
                    site.name, seconds));
  }
  return SecondsToNs(seconds);
}

void AddWork(const PartWork& work, ModelPart part, PartTable<Demand>& demands) {
  demands.at(part, PartAction::kForward).work = work.forward;
  demands.at(part, PartAction::kInputGrad).work = work.input_grad;
  demands.at(part, PartAction::kWeightGrad).work = work.weight_grad;
}

template <typename Costs>
auto& FieldOf(Costs& costs, ModelPart part, PartAction action) {
  auto& of_part = part == ModelPart::kEmbedding ? costs.embedding
                  : part == ModelPart::kBlock   ? costs.block
                                                : costs.head;
  switch (action) {
    case PartAction::kForward:
      return of_part.forward_ns;
    case PartAction::kInputGrad:
      return of_part.input_grad_ns;
    case PartAction::kWeightGrad:
      break;
  }
  return of_part.weight_grad_ns;
}

}  // namespace

ExecutionConfig MakeExecutionConfig(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length,
                                    Recompute recompute, int32_t zero_stage) {
  return {.micro_batch_size = micro_batch_size,
          .sequence_length = sequence_length,
          .tensor = std::max<int64_t>(1, job.parallelism.tensor),
          .data = std::max<int64_t>(1, job.parallelism.data),
          .sequence_parallel = job.parallelism.sequence_parallel,
          .zero_stage = zero_stage,
          .recompute = recompute,
          .precision = job.precision,
          .attention = job.attention,
          .offloads_optimizer = job.parallelism.offload == Offload::kOptimizer,
          .resets_documents = job.data.documents == Documents::kReset,
          .keeps_states = job.recovery == Recovery::kMemory,
          .own_memory = job.own_memory};
}

double Efficiency(const DeviceSpec& device, int64_t tokens) {
  const auto rows = static_cast<double>(tokens);
  const bool by_operation = device.roofline == Roofline::kOperation;
  return device.efficiency * rows / (rows + (by_operation ? kHalfEfficiencyTokensOfOperation : kHalfEfficiencyTokens));
}

double AttentionShapeShare(const ProductShape& shape) {
  const auto share = [](double size, double half) { return size / (size + half); };
  const auto head = static_cast<double>(std::min(shape.head_dim, kFullHead));
  return share(static_cast<double>(shape.sequence_length), kHalfEfficiencyKeys) * share(head, kHalfEfficiencyHead) /
         share(kFullHead, kHalfEfficiencyHead);
}

double AttentionEfficiency(const DeviceSpec& device, const ProductShape& shape) {
  return device.attention_efficiency.value_or(kAttentionShare * device.efficiency) * AttentionShapeShare(shape);
}

double RooflineSeconds(const Work& work, const DeviceSpec& device, const ProductShape& shape) {
  const double product_s =
      static_cast<double>(work.flops - work.attention_flops) / (device.peak_flops * Efficiency(device, shape.tokens));
  const double attention_s = work.attention_flops == 0 ? 0
                                                       : static_cast<double>(work.attention_flops) /
                                                             (device.peak_flops * AttentionEfficiency(device, shape));
  const auto moved_s = [&](int64_t bytes) { return static_cast<double>(bytes) / device.memory_bandwidth_bytes_per_s; };
  if (device.roofline != Roofline::kOperation) {
    return std::max(product_s + attention_s, moved_s(work.bytes));
  }
  return std::max(product_s, moved_s(work.bytes - work.attention_bytes - work.streamed_bytes)) +
         std::max(attention_s, moved_s(work.attention_bytes)) + moved_s(work.streamed_bytes);
}

double AllReduceSeconds(int64_t bytes, int64_t ranks, double bandwidth_bytes_per_s) {
  if (ranks == 1 || bytes == 0) {
    return 0;
  }
  const auto share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return 2 * share * static_cast<double>(bytes) / bandwidth_bytes_per_s;
}

double AllReduceSeconds(int64_t bytes, const ReplicaGroup& replicas) {
  const double within = AllReduceSeconds(bytes, replicas.max_per_node, replicas.node_bandwidth_bytes_per_s);
  const double over = AllReduceSeconds(bytes, replicas.nodes, replicas.network_bandwidth_bytes_per_s) /
                      static_cast<double>(replicas.min_per_node);
  return within + over + 2e-9 * static_cast<double>((replicas.nodes - 1) * replicas.network_latency_ns);
}

PartTable<Demand> DemandsOf(const ModelSpec& model, const ExecutionConfig& config) {
  PartTable<Demand> demands;
  AddWork(EmbeddingWork(model, config), ModelPart::kEmbedding, demands);
  AddWork(BlockWork(model, config), ModelPart::kBlock, demands);
  AddWork(HeadWork(model, config), ModelPart::kHead, demands);
  if (config.tensor == 1) {
    return demands;
  }
  const int64_t message = BoundaryMessageBytes(model, config);
  const bool by_rows = config.sequence_parallel;
  const int64_t gather = by_rows ? message / 2 : 0;     // of rows, or a scatter of their sum
  const int64_t sum = by_rows ? message / 2 : message;  // of each rank's part of a product
  const auto at = [&](ModelPart part, PartAction action) -> int64_t& {
    return demands.at(part, action).collective_bytes;
  };
  at(ModelPart::kEmbedding, PartAction::kForward) = sum;
  at(ModelPart::kEmbedding, PartAction::kInputGrad) = gather;
  at(ModelPart::kBlock, PartAction::kForward) = 2 * (gather + sum);
  at(ModelPart::kBlock, PartAction::kInputGrad) =
      2 * (gather + sum) + (config.recompute == Recompute::kFull ? 2 * gather + sum : 0);
  at(ModelPart::kBlock, PartAction::kWeightGrad) = 2 * gather;
  at(ModelPart::kHead, PartAction::kForward) = gather + kLossExchanges * kFp32Bytes * config.tokens();
  at(ModelPart::kHead, PartAction::kInputGrad) = sum;
  at(ModelPart::kHead, PartAction::kWeightGrad) = gather;
  return demands;
}

int64_t& ModelCosts::at(ModelPart part, PartAction action) { return FieldOf(*this, part, action); }
int64_t ModelCosts::at(ModelPart part, PartAction action) const { return FieldOf(*this, part, action); }

absl::StatusOr<ModelCosts> AnalyticCosts(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site) {
  GP_RETURN_IF_ERROR(RequireFigure(site, "peak_flops", site.device.peak_flops));
  GP_RETURN_IF_ERROR(RequireFigure(site, "memory_bandwidth", site.device.memory_bandwidth_bytes_per_s));
  if (config.tensor > 1) {
    GP_RETURN_IF_ERROR(RequireFigure(site, "intra_node_bandwidth", site.device.intra_node_bandwidth_bytes_per_s));
  }
  const PartTable<Demand> demands = DemandsOf(model, config);
  ModelCosts costs;
  for (const ModelPart part : kModelParts) {
    for (const PartAction action : kPartActions) {
      GP_ASSIGN_OR_RETURN(costs.at(part, action), PartNs(model, demands.at(part, action), config, site));
    }
  }
  const double update_bytes =
      kAdamWBytesPerParameter + (config.precision == Precision::kBf16 ? kComputeWeightBytes : 0);
  costs.adamw_ns_per_parameter = 1e9 * update_bytes / site.device.memory_bandwidth_bytes_per_s;
  return costs;
}

}  // namespace geopipe
