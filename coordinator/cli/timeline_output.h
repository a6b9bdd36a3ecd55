// A simulated timeline in the forms in which people look at it: files to export, and a Gantt chart on the terminal.
// What `plan` and `simulate` share.
#pragma once

#include <absl/status/status.h>

#include <span>
#include <string>

#include "coordinator/cli/files/output_files.h"
#include "coordinator/cli/render/timeline_labels.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/schedule/schedule.h"
#include "optimizer/simulator/simulator.h"
#include "runtime/base/flags.h"

namespace geopipe {

struct TimelineFlags {
  std::string export_csv;
  std::string export_trace;
  std::string export_svg;
  bool gantt = false;

  // --export-csv, --export-trace, --export-svg and --gantt. Must outlive the parsing.
  void Add(FlagSet& flags);
  // Before anything is made: that no export is one of the files that the command reads, nor another export; and that
  // one to standard output ("-") is alone there, in place of the report. InvalidArgument names the flags.
  absl::Status Check(const FlagSet& flags, std::span<const NamedFile> inputs) const;
  bool to_standard_output() const;
};

// `result` was recorded; all refer to the same schedule.
struct Timeline {
  const Schedule& schedule;  // lowered
  const PipelineCosts& costs;
  const SimulationResult& result;
  TimelineLabels labels;
};

// Writes the files that the flags name. Errors are those of writing.
absl::Status ExportTimeline(const TimelineFlags& flags, const Timeline& timeline);

// The chart as wide as the terminal, in colour if the terminal wants it.
std::string GanttText(const Timeline& timeline);

// The plan's pipeline ranks, sites and nodes.
TimelineLabels LabelsOfPlan(const Plan& plan, int64_t lower_bound_ns);

}  // namespace geopipe
