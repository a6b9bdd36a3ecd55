// A plan with all that `geopipectl plan` says of it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/progress.h"
#include "coordinator/cli/render/explanation_output.h"
#include "coordinator/cli/render/plan_output.h"
#include "optimizer/plan/alternatives.h"
#include "optimizer/plan/omissions.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/report/memory_breakdown.h"
#include "optimizer/plan/report/plan_figures.h"
#include "optimizer/simulator/simulator.h"
#include "runtime/base/clock.h"

namespace geopipe {

struct Planned {
  PlanResult result;
  SimulationResult simulated;  // recorded
  PlanFigures figures;
  Alternatives alternatives;
  std::vector<MemoryBreakdown> memory;
  std::vector<Omission> omissions;
  std::optional<Explanation> explanation;
  int64_t wall_ns = 0;
};

// Plans on all processors for as long as the job's search may take, and as long again for the alternatives. `what` is
// what `progress` calls it. Errors as MakePlan's.
absl::StatusOr<Planned> MakeTimedPlan(PlanRequest request, bool explain, Clock& clock, ProgressMeter& progress,
                                      const std::string& what = "planning");

// The document of `plan -o json`.
Json PlannedToJson(const Planned& planned);

}  // namespace geopipe
