// Schedules to start `auto` with.
#pragma once

#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// Every schedule that a rule makes for this shape, those with delta_n at several fractions and multiples of the one
// that hides each crossing (ceil(2 D / t), with t the work of the busiest device per micro-batch), and those that split
// the backward only where the costs do. Whether they fit into memory is not looked at. Where a device has several
// chunks this is interleaved or zb-v, if their placement is the shape's, or nothing.
// Roughly in order of the memory they need, gpipe last: of equals a search takes the first.
//
// REQUIRES: ValidateCosts(costs).ok().
std::vector<Schedule> MakeNamedStarts(const PipelineCosts& costs);

}  // namespace geopipe
