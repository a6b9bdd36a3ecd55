// What bounds take for the costs of a site.
#pragma once

#include <optional>

#include "optimizer/model/cluster.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/execution_config.h"

namespace geopipe {

// The lesser of both, action by action.
void TakeFaster(const PartCosts& other, PartCosts& part);

// On the site, part by part those of its fastest device. nullopt where a device figure is missing.
std::optional<ModelCosts> FastestCosts(const CostSource& source, const ExecutionConfig& config, const SiteSpec& site);

}  // namespace geopipe
