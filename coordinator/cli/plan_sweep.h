// geopipectl plan --sweep: many plans on changed clusters.
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "optimizer/plan/sweep.h"
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

// Plans, exports (CSV and SVG), prints; the exit code. Each plan may take the job's time budget. Says on standard error
// how far it is (ProgressMeter).
absl::StatusOr<int> RunPlanSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request,
                                 Clock& clock, OutputFormat output);

// "bandwidth=10Gbps..400Gbps", "latency=0.5ms..50ms", "delta_n=0..16": one axis per text, in their order. `steps` is
// empty, one number for all, or one for each ("7,14"). InvalidArgument begins with the flag and its text.
absl::StatusOr<std::vector<SweepAxis>> ParseSweeps(std::span<const std::string> texts, std::string_view steps);

// A sweep for people (a table and what it comes to), for spreadsheets (CSV) and for programs (JSON).
std::string SweepText(const Sweep& sweep, int32_t columns = kAnyColumns);

// One line per point and schedule; the first one names the columns. Base units; ΔN of several crossings with blanks
// between them; empty where there is no plan.
std::string SweepCsv(const Sweep& sweep);

// {"axes":[{"key","values"}…],"points":[{…the swept figures…,"results":[…]}…],"knees":[…],"summary":[…]}.
Json SweepToJson(const Sweep& sweep);

}  // namespace geopipe
