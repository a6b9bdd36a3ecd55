// Lower bounds on an iteration by one device: its work, and the time that it cannot fill with work.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/simulator/shortest_path.h"

namespace geopipe {

// The greatest of the bounds of all devices, without the epilogue; for every schedule or, `within_memory`, for those
// that fit the capacity of every device. `paths` are ShortestPaths(costs). REQUIRES: ValidateCosts(costs).ok();
// within_memory: OneMicroBatchFits(costs).
int64_t DevicesBoundNs(const PipelineCosts& costs, const std::vector<StagePath>& paths, bool within_memory);

// True when a schedule exists that fits: each device has room for one micro-batch in all of its stages. REQUIRES:
// costs.memory has a value.
bool OneMicroBatchFits(const PipelineCosts& costs);

}  // namespace geopipe
