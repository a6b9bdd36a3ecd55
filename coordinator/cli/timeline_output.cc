#include "coordinator/cli/timeline_output.h"

#include <fmt/format.h>

#include <array>

#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/render/timeline.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/csv.h"
#include "runtime/base/terminal.h"

namespace geopipe {

void TimelineFlags::Add(FlagSet& flags) {
  flags.AddPath("export-csv", &export_csv, "FILE",
                "Write the lowered schedule, one row per device; - for standard output.");
  flags.AddPath("export-trace", &export_trace, "FILE", "Write the timeline for Perfetto or chrome://tracing.");
  flags.AddPath("export-svg", &export_svg, "FILE", "Write the timeline as a picture.");
  flags.Add("gantt", &gantt, "Draw the timeline here, as wide as the terminal ($COLUMNS).");
}

bool TimelineFlags::to_standard_output() const {
  return export_csv == kStandardStream || export_trace == kStandardStream || export_svg == kStandardStream;
}

absl::Status TimelineFlags::Check(const FlagSet& flags, std::span<const NamedFile> inputs) const {
  const std::array<NamedFile, 3> outputs{
      {{"--export-csv", export_csv}, {"--export-trace", export_trace}, {"--export-svg", export_svg}}};
  GP_RETURN_IF_ERROR(CheckOutputs(inputs, outputs));
  GP_RETURN_IF_ERROR(CheckPlaces(outputs));
  for (const std::string_view other : {"gantt", "format"}) {
    if (to_standard_output() && flags.given(other)) {
      return absl::InvalidArgumentError(
          fmt::format("an export to - takes the place of the report; leave --{} out, or name a file", other));
    }
  }
  return absl::OkStatus();
}

absl::Status ExportTimeline(const TimelineFlags& flags, const Timeline& timeline) {
  if (!flags.export_csv.empty()) {
    GP_RETURN_IF_ERROR(WriteOutputFile(flags.export_csv, ToCsv(timeline.schedule)));
  }
  if (!flags.export_trace.empty()) {
    GP_RETURN_IF_ERROR(
        WriteOutputFile(flags.export_trace, ToChromeTrace(timeline.result, timeline.costs, timeline.labels)));
  }
  if (!flags.export_svg.empty()) {
    GP_RETURN_IF_ERROR(WriteOutputFile(flags.export_svg, ToSvg(timeline.result, timeline.costs, timeline.labels)));
  }
  return absl::OkStatus();
}

std::string GanttText(const Timeline& timeline) {
  return ToGantt(timeline.result, timeline.costs, timeline.labels,
                 {.columns = TerminalColumns(), .colour = OutputInColour()});
}

TimelineLabels LabelsOfPlan(const Plan& plan, int64_t lower_bound_ns) {
  TimelineLabels labels;
  const std::string delta_n = DeltaNText(plan);
  labels.title = fmt::format("{}{}{}, {}, {} × {} tokens", ScheduleTitle(plan.schedule), delta_n.empty() ? "" : ", ΔN ",
                             delta_n, CommModeName(plan.comm), plan.micro_batch_size, plan.sequence_length);
  labels.device = "pipeline rank";
  labels.lower_bound_ns = lower_bound_ns;
  labels.pipelines = plan.grid.data;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    labels.sites.push_back(plan.pipeline_ranks[rank].site);
    labels.places.push_back(fmt::format("node {}", plan.DevicesOf(rank).front().node));
  }
  return labels;
}

}  // namespace geopipe
