// geopipectl plan --sweep: many plans on changed clusters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "optimizer/plan/planner.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"

namespace geopipe {

struct SweepFlags {
  std::vector<std::string> sweeps;
  std::string steps;
  std::string schedules;

  // --sweep, --steps and --sweep-schedules. Must outlive the parsing.
  void Add(FlagSet& flags);
  bool given() const { return !sweeps.empty(); }
};

// Plans, exports (CSV and SVG), prints; the exit code. Each plan may take the job's time budget. Shows how far it is on
// standard error when that is a terminal.
int RunPlanSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request, Clock& clock,
                 OutputFormat output);

}  // namespace geopipe
