// geopipectl plan --what-if: the plan beside that of a job or cluster of which some figures are others.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "optimizer/plan/planner.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"

namespace geopipe {

struct WhatIfFlags {
  std::vector<std::string> changes;  // "KEY=VALUE[,KEY=VALUE…]" each

  // --what-if. Must outlive the parsing.
  void Add(FlagSet& flags);
  bool given() const { return !changes.empty(); }
  // InvalidArgument: --what-if stands beside flags that concern one plan or a sweep.
  absl::Status Check(bool explain, bool sweep, const TimelineFlags& timeline) const;
};

// Plans `request` twice, as it is and changed, and prints both side by side; returns the exit code. Each plan may take
// the job's time budget. One of the two may be infeasible: its side says why, and the exit code is that of the changed
// one.
absl::StatusOr<int> RunWhatIf(const WhatIfFlags& flags, PlanRequest request, Clock& clock, OutputFormat output);

}  // namespace geopipe
