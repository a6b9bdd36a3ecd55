// Schedules to start `auto` with.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// ΔN of each boundary, in several fractions and multiples of the ΔN that hides each crossing, ceil(2 D / t), with t the
// work of the busiest stage per micro-batch.
std::vector<std::vector<int32_t>> HidingDeltaN(const PipelineCosts& costs);

// Every schedule that a rule makes for this shape, those with ΔN at each of HidingDeltaN, and those that split the
// backward only if the costs do. They need not fit into memory. If a device has several stages this is interleaved or
// zb-v, if their placement is the shape's, or none. Roughly in order of the memory they need, gpipe last: of equals a
// search takes the first.
//
// REQUIRES: ValidateCosts(costs).ok().
std::vector<Schedule> MakeNamedStarts(const PipelineCosts& costs);

}  // namespace geopipe
