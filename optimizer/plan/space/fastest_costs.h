// What bounds take for the costs of a site.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// The lesser of both, action by action.
void TakeFaster(const PartCosts& other, PartCosts& part);

// Where a stage's replicas can be on the site: as many on each of its nodes, from as many as a node holds to one. Of
// any other places some of these take no more for a collective. Empty where a figure is missing that all of them need.
std::vector<ReplicaGroup> ReplicaPlaces(const ExecutionConfig& config, const SiteSpec& site);

// On the site, part by part those of its fastest device, with what ZeRO costs at least (AddSharding). nullopt where a
// device figure is missing.
std::optional<ModelCosts> FastestCosts(const ModelSpec& model, const CostSource& source, const ExecutionConfig& config,
                                       const SiteSpec& site);

}  // namespace geopipe
