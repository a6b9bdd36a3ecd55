// Memory of the devices of a plan, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/report/memory_breakdown.h"

namespace geopipe {

// A device of every pipeline rank at its peak by category, and which has the least to spare. Folded: of more than
// twelve ranks those that follow each other at one site with as much of weights, gradients and optimizer states, in one
// row, which is that of the greatest peak. Empty without ranks.
std::string MemoryText(const std::vector<MemoryBreakdown>& ranks, View view = {});
Json MemoryToJson(const std::vector<MemoryBreakdown>& ranks);

}  // namespace geopipe
