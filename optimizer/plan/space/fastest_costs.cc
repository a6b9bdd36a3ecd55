#include "optimizer/plan/space/fastest_costs.h"

#include <absl/status/statusor.h>

#include <algorithm>

#include "optimizer/model/plan/plan_costs.h"

namespace geopipe {

void TakeFaster(const PartCosts& other, PartCosts& part) {
  part.forward_ns = std::min(part.forward_ns, other.forward_ns);
  part.input_grad_ns = std::min(part.input_grad_ns, other.input_grad_ns);
  part.weight_grad_ns = std::min(part.weight_grad_ns, other.weight_grad_ns);
}

std::vector<ReplicaGroup> ReplicaPlaces(const ExecutionConfig& config, const SiteSpec& site) {
  const int64_t per_node = site.devices_per_node / config.tensor;
  const double sharers = site.network.per == NetworkSpec::Per::kNode ? static_cast<double>(site.devices_per_node) : 1;
  std::vector<ReplicaGroup> places;
  for (int64_t together = std::min(config.data, per_node); together >= 1; --together) {
    const int64_t nodes = (config.data + together - 1) / together;
    if ((nodes > 1 && !site.network.given()) || (together > 1 && site.device.intra_node_bandwidth_bytes_per_s <= 0)) {
      continue;
    }
    places.push_back({.nodes = nodes,
                      .max_per_node = together,
                      .min_per_node = together,
                      .node_bandwidth_bytes_per_s = site.device.intra_node_bandwidth_bytes_per_s,
                      .network_bandwidth_bytes_per_s = site.network.bandwidth_bytes_per_s / sharers,
                      .network_latency_ns = site.network.latency_ns});
  }
  return places;
}

namespace {

void TakeFaster(const ModelCosts& other, ModelCosts& costs) {
  geopipe::TakeFaster(other.embedding, costs.embedding);
  geopipe::TakeFaster(other.block, costs.block);
  geopipe::TakeFaster(other.head, costs.head);
  costs.adamw_ns_per_parameter = std::min(costs.adamw_ns_per_parameter, other.adamw_ns_per_parameter);
}

}  // namespace

std::optional<ModelCosts> FastestCosts(const ModelSpec& model, const CostSource& source, const ExecutionConfig& config,
                                       const SiteSpec& site) {
  std::optional<ModelCosts> fastest;
  const int64_t devices = source.profile() == nullptr ? 1 : site.devices_per_node;
  for (int32_t device = 0; device < devices; ++device) {
    const absl::StatusOr<ModelCosts> costs = source.At(config, site, device);
    if (!costs.ok()) {
      return std::nullopt;
    }
    if (!fastest.has_value()) {
      fastest = *costs;
      continue;
    }
    TakeFaster(*costs, *fastest);
  }
  if (!fastest.has_value() || config.zero_stage < 2 || config.data == 1) {
    return fastest;
  }
  std::optional<ModelCosts> sharded;
  for (const ReplicaGroup& replicas : ReplicaPlaces(config, site)) {
    ModelCosts here = *fastest;
    AddSharding(model, config, replicas, here);
    if (!sharded.has_value()) {
      sharded = here;
    } else {
      TakeFaster(here, *sharded);
    }
  }
  return sharded.has_value() ? sharded : fastest;
}

}  // namespace geopipe
