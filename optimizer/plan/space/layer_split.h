// Splits the layers over the stages of a pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/plan/plan_costs.h"

namespace geopipe {

struct StageLoad {
  int64_t fixed_ns = 0;  // of one micro-batch, forward and backward, without any layer: the embedding, the head
  int64_t layer_ns = 0;  // of one layer
  int64_t most = 0;      // layers that the stage's memory holds
};

// The load of every pipeline rank, over all its stages; memory holds every one of `layers`.
std::vector<StageLoad> LoadsOf(const PlanParts& parts, int64_t layers);

// The split of `layers` with the least largest stage time, every stage having at least one and at most as many as it
// holds; the next largest times are least, too. Layers are alike, so giving one at a time to the stage whose time is
// least with it is exact. Among equals the more central stage takes it and then the later, as in SplitLayers. nullopt
// when the stages cannot hold them all.
std::optional<std::vector<int32_t>> BalanceLayers(std::span<const StageLoad> stages, int64_t layers);

// The largest stage time of BalanceLayers without regard to memory. REQUIRES: layers >= stages.size() >= 1.
int64_t LeastStageTimeNs(std::span<const StageLoad> stages, int64_t layers);

// Consecutive ranges of these sizes, the embedding with the first and the head with the last.
std::vector<LayerRange> RangesOf(std::span<const int32_t> layers);
std::vector<int32_t> CountsOf(std::span<const LayerRange> ranges);

}  // namespace geopipe
