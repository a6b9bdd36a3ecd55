// Two plans of a job side by side: as things are, and as they would be.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/alternatives.h"
#include "optimizer/plan/report/memory_breakdown.h"

namespace geopipe {

struct ChangedFigure {
  std::string key;
  std::string from;
  std::string to;
};

// One of the two. Nothing is owned.
struct WhatIfSide {
  const PlanResult* result = nullptr;  // null: there is no plan, and none of the next three
  const PlanFigures* figures = nullptr;
  const Alternatives* alternatives = nullptr;
  const std::vector<MemoryBreakdown>* memory = nullptr;
  std::string missing = {};  // why there is no plan
};

// Lists what is changed; then both plans in a table with the change of each figure, no line of which is longer than 80
// columns (keys and sentences of the planner aside); then what that comes to in a sentence.
std::string WhatIfText(const std::vector<ChangedFigure>& changed, const WhatIfSide& now, const WhatIfSide& then);

// {"same_plan","iteration","tokens_per_s","job","peak_bytes" (by which part they grow),"bubble_ratio","mfu" (the
// difference)}; null where either has no plan.
Json WhatIfChangeToJson(const WhatIfSide& now, const WhatIfSide& then);

}  // namespace geopipe
