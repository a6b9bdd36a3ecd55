// The costs of a site as bounds take them.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/execution_config.h"
#include "optimizer/model/model_spec.h"

namespace geopipe {

// Takes the lesser of both, action by action.
void TakeFaster(const PartCosts& other, PartCosts& part);

// Places of a stage's replicas on the site: equally many on each of its nodes, from as many as a node holds down to
// one. No other places take less for a collective than all of these. Empty if a figure is missing that all of them
// need.
std::vector<ReplicaGroup> ReplicaPlaces(const ExecutionConfig& config, const SiteSpec& site);

// Costs on the site, part by part those of its fastest device, with the least cost of ZeRO (AddSharding). nullopt if a
// device figure is missing.
std::optional<ModelCosts> FastestCosts(const ModelSpec& model, const CostSource& source, const ExecutionConfig& config,
                                       const SiteSpec& site);

}  // namespace geopipe
