#include "optimizer/model/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/pipeline_costs.h"

namespace geopipe {
namespace {

// Rows at which a product reaches half of the device's best throughput.
constexpr double kHalfEfficiencyTokens = 256;
// Read: gradient 4 (or 2), master weight, two moments; written: master weight, two moments, compute weight. 28 either
// way in fp32 (16 + 12) and in bf16 (14 + 14).
constexpr double kAdamWBytesPerParameter = 28;
constexpr double kLongestPartSeconds = 1e6;

absl::Status RequireFigure(const SiteSpec& site, std::string_view key, double value) {
  if (value > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("site \"{}\": device.{} is {}, and no profile replaces the cost model; give the figure or a profile",
                  site.name, key, value));
}

absl::StatusOr<int64_t> PartNs(const Work& work, int64_t collective_bytes, const ExecutionConfig& config,
                               const SiteSpec& site) {
  double seconds = RooflineSeconds(work, site.device, config.tokens());
  seconds += AllReduceSeconds(collective_bytes, config.tensor, site.device.intra_node_bandwidth_bytes_per_s);
  if (!(seconds < kLongestPartSeconds)) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": one micro-batch would take {} s in one part of the model; its device figures are "
                    "too small",
                    site.name, seconds));
  }
  return SecondsToNs(seconds);
}

// Bytes all-reduced in F, I and W.
struct CollectiveBytes {
  int64_t forward = 0;
  int64_t input_grad = 0;
};

absl::StatusOr<PartCosts> PartCostsOf(const PartWork& work, const CollectiveBytes& collectives,
                                      const ExecutionConfig& config, const SiteSpec& site) {
  PartCosts costs;
  GP_ASSIGN_OR_RETURN(costs.forward_ns, PartNs(work.forward, collectives.forward, config, site));
  GP_ASSIGN_OR_RETURN(costs.input_grad_ns, PartNs(work.input_grad, collectives.input_grad, config, site));
  GP_ASSIGN_OR_RETURN(costs.weight_grad_ns, PartNs(work.weight_grad, 0, config, site));
  return costs;
}

PartCosts Slower(const PartCosts& a, const PartCosts& b) {
  return {.forward_ns = std::max(a.forward_ns, b.forward_ns),
          .input_grad_ns = std::max(a.input_grad_ns, b.input_grad_ns),
          .weight_grad_ns = std::max(a.weight_grad_ns, b.weight_grad_ns)};
}

ModelCosts FromEntry(const ProfileEntry& entry) {
  return {.embedding = entry.embedding,
          .block = entry.block,
          .head = entry.head,
          .adamw_ns_per_parameter = static_cast<double>(entry.adamw_ns_per_million_parameters) / 1e6};
}

std::optional<ModelCosts> Measured(const ExecutionConfig& config, std::string_view site, int32_t device,
                                   const Profile& profile) {
  std::set<std::string_view> nodes;
  std::optional<ModelCosts> exact;
  std::optional<ModelCosts> slowest;
  for (const ProfileEntry& entry : profile.entries) {
    if (entry.site != site || entry.micro_batch_size != config.micro_batch_size ||
        entry.sequence_length != config.sequence_length) {
      continue;
    }
    nodes.insert(entry.node);
    const ModelCosts costs = FromEntry(entry);
    if (entry.device == device) {
      exact = costs;
    }
    slowest = !slowest.has_value() ? costs
                                   : ModelCosts{.embedding = Slower(slowest->embedding, costs.embedding),
                                                .block = Slower(slowest->block, costs.block),
                                                .head = Slower(slowest->head, costs.head),
                                                .adamw_ns_per_parameter = std::max(slowest->adamw_ns_per_parameter,
                                                                                   costs.adamw_ns_per_parameter)};
  }
  return nodes.size() == 1 && exact.has_value() ? exact : slowest;
}

}  // namespace

ExecutionConfig MakeExecutionConfig(const JobSpec& job, int64_t micro_batch_size, int64_t sequence_length,
                                    Recompute recompute) {
  return {.micro_batch_size = micro_batch_size,
          .sequence_length = sequence_length,
          .tensor = std::max<int64_t>(1, job.parallelism.tensor),
          .data = std::max<int64_t>(1, job.parallelism.data),
          .sequence_parallel = job.parallelism.sequence_parallel,
          .zero_stage = job.parallelism.zero_stage,
          .recompute = recompute,
          .precision = job.precision};
}

double Efficiency(const DeviceSpec& device, int64_t tokens) {
  const auto rows = static_cast<double>(tokens);
  return device.efficiency * rows / (rows + kHalfEfficiencyTokens);
}

double RooflineSeconds(const Work& work, const DeviceSpec& device, int64_t tokens) {
  const double compute = static_cast<double>(work.flops) / (device.peak_flops * Efficiency(device, tokens));
  const double traffic = static_cast<double>(work.bytes) / device.memory_bandwidth_bytes_per_s;
  return std::max(compute, traffic);
}

double AllReduceSeconds(int64_t bytes, int64_t ranks, double bandwidth_bytes_per_s) {
  if (ranks == 1 || bytes == 0) {
    return 0;
  }
  const auto share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return 2 * share * static_cast<double>(bytes) / bandwidth_bytes_per_s;
}

absl::StatusOr<ModelCosts> AnalyticCosts(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site) {
  GP_RETURN_IF_ERROR(RequireFigure(site, "peak_flops", site.device.peak_flops));
  GP_RETURN_IF_ERROR(RequireFigure(site, "memory_bandwidth", site.device.memory_bandwidth_bytes_per_s));
  if (config.tensor > 1) {
    GP_RETURN_IF_ERROR(RequireFigure(site, "intra_node_bandwidth", site.device.intra_node_bandwidth_bytes_per_s));
  }
  const int64_t message = BoundaryMessageBytes(model, config);
  CollectiveBytes block{.forward = 2 * message, .input_grad = 2 * message};
  if (config.recompute == Recompute::kFull) {
    block.input_grad += block.forward;
  }
  ModelCosts costs;
  GP_ASSIGN_OR_RETURN(costs.embedding,
                      PartCostsOf(EmbeddingWork(model, config), {.forward = message, .input_grad = 0}, config, site));
  GP_ASSIGN_OR_RETURN(costs.block, PartCostsOf(BlockWork(model, config), block, config, site));
  GP_ASSIGN_OR_RETURN(costs.head,
                      PartCostsOf(HeadWork(model, config), {.forward = 0, .input_grad = message}, config, site));
  costs.adamw_ns_per_parameter = 1e9 * kAdamWBytesPerParameter / site.device.memory_bandwidth_bytes_per_s;
  return costs;
}

absl::StatusOr<ModelCosts> CostsAt(const ModelSpec& model, const ExecutionConfig& config, const SiteSpec& site,
                                   int32_t device, const Profile* profile) {
  if (profile != nullptr) {
    if (const std::optional<ModelCosts> measured = Measured(config, site.name, device, *profile)) {
      return *measured;
    }
  }
  return AnalyticCosts(model, config, site);
}

}  // namespace geopipe
