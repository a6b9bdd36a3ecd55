// Memory of the devices of a plan, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/report/memory_breakdown.h"

namespace geopipe {

// A device of every pipeline rank at its peak by category, and which has the least to spare. Folded: with more than
// twelve ranks, consecutive ranks with equal weights, gradients and optimizer states share a row, that of the greatest
// peak. Empty without ranks. `several_stages`: ranks run more than one stage, and so are not called stages.
std::string MemoryText(const std::vector<MemoryBreakdown>& ranks, bool several_stages, Rows rows = Rows::kAll);
Json MemoryToJson(const std::vector<MemoryBreakdown>& ranks);

}  // namespace geopipe
