// Schedules to start `auto` with.
#pragma once

#include <vector>

#include "optimizer/model/pipeline_costs.h"
#include "optimizer/schedule/schedule.h"

namespace geopipe {

// gpipe, 1f1b, and geopipe with several fractions and multiples of the delta_n that hides each crossing
// (ceil(2 D / t), with t the work of the busiest device per micro-batch). Whether they fit into memory is not looked
// at. Empty for shapes that these are not defined for: other than one chunk per device, in order.
// REQUIRES: ValidateCosts(costs).ok().
std::vector<Schedule> MakeNamedStarts(const PipelineCosts& costs);

}  // namespace geopipe
