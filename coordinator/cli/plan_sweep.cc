#include "coordinator/cli/plan_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "coordinator/cli/render/sweep_svg.h"
#include "coordinator/cli/sweep_flag.h"
#include "coordinator/cli/sweep_output.h"
#include "coordinator/cli/terminal.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/sweep.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

// "geopipe,auto"; empty for nothing.
std::vector<std::string> SplitNames(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    names.emplace_back(name);
    text.remove_prefix(std::min(text.size(), name.size() + 1));
  }
  return names;
}

absl::Status CheckFlags(const SweepFlags& flags, const TimelineFlags& timeline) {
  if (timeline.gantt || !timeline.export_trace.empty()) {
    return absl::InvalidArgumentError(fmt::format("{} shows one plan and --sweep makes many; leave one of them out",
                                                  timeline.gantt ? "--gantt" : "--export-trace"));
  }
  for (const std::string& schedule : SplitNames(flags.schedules)) {
    const absl::StatusOr<ScheduleKind> kind = ParseScheduleKind(schedule);
    if (!kind.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("--sweep-schedules {}: {}", flags.schedules, std::string(kind.status().message())));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Sweep> MakeSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request,
                                Clock& clock) {
  GP_RETURN_IF_ERROR(CheckFlags(flags, timeline));
  SweepRequest sweep;
  GP_ASSIGN_OR_RETURN(sweep.axes, ParseSweeps(flags.sweeps, flags.steps));
  sweep.schedules = SplitNames(flags.schedules);
  if (sweep.schedules.empty()) {
    // A sweep is about geopipe, unless the job is about something else.
    const ScheduleKind kind = request.job.search.schedule;
    sweep.schedules = {std::string(ScheduleKindName(kind == ScheduleKind::kAuto ? ScheduleKind::kGeoPipe : kind))};
  }
  int64_t deadline_ns = 0;
  request.should_stop = [&clock, &deadline_ns] { return clock.NowNs() >= deadline_ns; };
  sweep.base = std::move(request);
  const bool show = ErrorIsTerminal();
  sweep.progress = [&](int64_t done, int64_t total) {
    deadline_ns = clock.NowNs() + sweep.base.job.search.time_budget_ns;
    if (show) {
      fmt::print(stderr, "\rsweep: {} of {} plans", done, total);
      std::fflush(stderr);
    }
  };
  absl::StatusOr<Sweep> result = RunSweep(sweep);
  if (show) {
    fmt::print(stderr, "\r\x1b[K");
  }
  return result;
}

}  // namespace

void SweepFlags::Add(FlagSet& flags) {
  flags.Add("sweep", &sweeps, "KEY=FIRST..LAST",
            "Plan for many values of one figure: bandwidth=10Gbps..400Gbps or latency=0.5ms..50ms (of every link), or "
            "delta_n=0..16 (at every crossing). Twice with different figures: a grid. --export-csv and --export-svg "
            "then write the sweep.");
  flags.Add("steps", &steps, "N[,N]",
            "Values of each sweep, in equal ratios (ΔN: in equal steps); 13, and every ΔN, if not given.");
  flags.Add("sweep-schedules", &schedules, "NAME[,NAME…]",
            "Schedules that a sweep searches for; the job's if not given, and geopipe where that is auto.");
}

int RunPlanSweep(const SweepFlags& flags, const TimelineFlags& timeline, PlanRequest request, Clock& clock,
                 OutputFormat output) {
  const std::string job = request.job.name;
  const absl::StatusOr<Sweep> sweep = MakeSweep(flags, timeline, std::move(request), clock);
  if (!sweep.ok()) {
    return Fail(sweep.status(), LocalExitCode(sweep.status()));
  }
  absl::Status written;
  if (!timeline.export_csv.empty()) {
    written = WriteFileAtomically(timeline.export_csv, SweepCsv(*sweep));
  }
  if (written.ok() && !timeline.export_svg.empty()) {
    written = WriteFileAtomically(
        timeline.export_svg,
        SweepToSvg(*sweep, fmt::format("{}: {} against 1F1B", job, fmt::join(sweep->schedules, ", "))));
  }
  if (!written.ok()) {
    return Fail(written, kExitFailed);
  }
  if (output == OutputFormat::kTable) {
    fmt::print("{}", SweepText(*sweep));
  } else {
    PrintDocument(SweepToJson(*sweep), output);
  }
  return kExitOk;
}

}  // namespace geopipe
