// Limits that rule out a split of a plan's layers before its costs are composed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optimizer/model/memory_model.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/plan/space/layer_split.h"

namespace geopipe {

// Limits of one plan, whatever its layers; `parts` and `memory` are its own.
class LayerLimits {
 public:
  // REQUIRES: a layer for each stage at least.
  LayerLimits(const Plan& plan, const PlanParts& parts, const PlanMemoryModel& memory, int64_t layers);

  // Layers that each stage can hold by itself, with one micro-batch in flight.
  std::vector<int64_t> Most() const;
  // Least time that the busiest pipeline rank works in an iteration, with these layers on each stage.
  int64_t WorkNs(std::span<const int64_t> layers) const;
  // True when every device may hold one micro-batch of all its stages. False: no schedule fits.
  bool HasRoom(std::span<const int64_t> layers) const;

 private:
  std::vector<int32_t> placement_;  // the pipeline rank of each stage
  std::vector<int64_t> capacity_bytes_;
  int64_t micro_batches_ = 0;
  std::vector<StageLoad> loads_;                // of ranks
  std::vector<std::vector<StageMemory>> need_;  // of each stage, by its number of layers, from one on: at least
};

}  // namespace geopipe
