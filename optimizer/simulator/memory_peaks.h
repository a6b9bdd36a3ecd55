// Peak memory of every device. A device runs one action at a time, so its memory depends on the order of its list
// alone, not on times.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Per device, in bytes: static memory plus activations of each micro-batch from the start of F to the end of B, or to
// the end of I, from where the part that W needs remains until the end of W.
// REQUIRES: every action is in range and on its device; memory is valid for schedule.shape.
std::vector<int64_t> PeakBytes(const Schedule& schedule, const MemoryCosts& memory);

}  // namespace geopipe
