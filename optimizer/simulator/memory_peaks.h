// Peak memory of every device. A device runs one action at a time, so its memory depends on the order of its list
// alone, not on times.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Peaks per device, in bytes: static memory plus activations of each micro-batch, from the start of F to the end of B
// or I; from there to the end of W the part that W needs. REQUIRES: every action is in range and on its device; memory
// is valid for schedule.shape.
std::vector<int64_t> PeakBytes(const Schedule& schedule, const MemoryCosts& memory);

}  // namespace geopipe
