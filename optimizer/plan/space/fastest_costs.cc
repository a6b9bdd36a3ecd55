#include "optimizer/plan/space/fastest_costs.h"

#include <absl/status/statusor.h>

#include <algorithm>

namespace geopipe {

void TakeFaster(const PartCosts& other, PartCosts& part) {
  part.forward_ns = std::min(part.forward_ns, other.forward_ns);
  part.input_grad_ns = std::min(part.input_grad_ns, other.input_grad_ns);
  part.weight_grad_ns = std::min(part.weight_grad_ns, other.weight_grad_ns);
}

std::optional<ModelCosts> FastestCosts(const CostSource& source, const ExecutionConfig& config, const SiteSpec& site) {
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
    TakeFaster(costs->embedding, fastest->embedding);
    TakeFaster(costs->block, fastest->block);
    TakeFaster(costs->head, fastest->head);
    fastest->adamw_ns_per_parameter = std::min(fastest->adamw_ns_per_parameter, costs->adamw_ns_per_parameter);
  }
  return fastest;
}

}  // namespace geopipe
