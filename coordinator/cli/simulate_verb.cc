// geopipectl simulate: one schedule under the explicit costs of a case file.
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/schedule_file.h"
#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "coordinator/spec/case_file.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {
namespace {

constexpr size_t kMaxDeviceRows = 64;
constexpr int64_t kAutoActions = 60'000'000;  // timed by the search for schedule auto: seconds at most
constexpr int64_t kMaxSimulatedMicroBatches = int64_t{1} << 22;

struct SimulateFlags {
  CommonFlags common;
  std::string case_path;
  std::string schedule = "geopipe";
  std::string delta_n;
  std::string comm;
  std::string schedule_csv;
  TimelineFlags timeline;
};

struct Simulated {
  std::string schedule;
  std::vector<int32_t> delta_n;  // per crossing; empty for schedules without
  PipelineCosts costs;
  Schedule lowered;
  SimulationResult result;
  int64_t lower_bound_ns = 0;                         // of every schedule
  std::optional<int64_t> memory_lower_bound_ns = {};  // of those that fit; nothing without memory, or if none fits

  // The greater of the two if it holds for this schedule.
  int64_t TightestBoundNs() const {
    return result.fits && memory_lower_bound_ns.has_value() ? *memory_lower_bound_ns : lower_bound_ns;
  }
};

// ΔN per boundary from one value per crossing, or one for all of them.
absl::StatusOr<std::vector<int32_t>> SpreadDeltaN(const PipelineCosts& costs, std::vector<int32_t>& delta_n) {
  const auto crossings = static_cast<size_t>(std::count_if(costs.boundaries.begin(), costs.boundaries.end(),
                                                           [](const BoundaryCost& cost) { return cost.crosses; }));
  if (delta_n.size() == 1) {
    delta_n.assign(crossings, delta_n.front());
  }
  if (delta_n.size() != crossings) {
    return absl::InvalidArgumentError(fmt::format(
        "--delta-n has {} numbers and the case has {} crossings: give one for all or one for each, in ascending order",
        delta_n.size(), crossings));
  }
  std::vector<int32_t> spread(costs.boundaries.size(), 0);
  size_t next = 0;
  for (size_t boundary = 0; boundary < spread.size(); ++boundary) {
    if (costs.boundaries[boundary].crosses) {
      spread[boundary] = delta_n[next++];
    }
  }
  return spread;
}

absl::StatusOr<Simulated> SimulateCase(const SimulateFlags& flags) {
  Simulated simulated;
  GP_ASSIGN_OR_RETURN(simulated.costs, ReadCaseFile(flags.case_path));
  PipelineCosts& costs = simulated.costs;
  const int64_t size = int64_t{costs.shape.stages} * costs.shape.micro_batches;
  if (size > kMaxSimulatedMicroBatches) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} stages times {} micro-batches make {}; a timeline of at most {} can be shown, give fewer "
                    "micro-batches",
                    flags.case_path, costs.shape.stages, costs.shape.micro_batches, size, kMaxSimulatedMicroBatches));
  }
  if (!flags.comm.empty()) {
    GP_ASSIGN_OR_RETURN(costs.comm, InFlag("--comm", ParseCommMode(flags.comm)));
  }
  Schedule schedule;
  if (!flags.schedule_csv.empty()) {
    simulated.schedule = "csv";
    GP_ASSIGN_OR_RETURN(schedule, ReadScheduleFile(flags.schedule_csv, costs.shape));
  } else {
    GP_ASSIGN_OR_RETURN(const ScheduleKind kind, InFlag("--schedule", ParseScheduleKind(flags.schedule)));
    simulated.schedule = flags.schedule;
    std::vector<int32_t> boundary_delta_n(costs.boundaries.size(), 0);
    if (RowOf(kind).uses_delta_n) {
      GP_ASSIGN_OR_RETURN(simulated.delta_n,
                          InFlag("--delta-n", ParseDeltaN(flags.delta_n.empty() ? "1" : flags.delta_n)));
      GP_ASSIGN_OR_RETURN(boundary_delta_n, SpreadDeltaN(costs, simulated.delta_n));
    } else if (!flags.delta_n.empty()) {
      return absl::InvalidArgumentError(fmt::format("--delta-n belongs to {}: schedule {} has none",
                                                    ScheduleNames(&ScheduleRow::uses_delta_n), flags.schedule));
    }
    if (kind == ScheduleKind::kAuto) {
      AutoOptions options{.evaluations = EvaluationsWithin(costs, kAutoActions)};
      GP_ASSIGN_OR_RETURN(AutoSchedule found, FindSchedule(costs, options));
      schedule = std::move(found.schedule);
    } else {
      absl::StatusOr<Schedule> made = MakeSchedule(kind, costs.shape, boundary_delta_n, ScheduleCostsOf(costs));
      if (!made.ok()) {
        return AttributeToCaseFile(flags.case_path, costs.shape, made.status());
      }
      schedule = *std::move(made);
    }
  }
  GP_ASSIGN_OR_RETURN(simulated.lowered, Lower(schedule));
  GP_ASSIGN_OR_RETURN(simulated.result, Simulate(simulated.lowered, costs, {.record_timeline = true}));
  simulated.lower_bound_ns = LowerBoundNs(costs);
  if (costs.memory.has_value()) {
    simulated.memory_lower_bound_ns = MemoryLowerBoundNs(costs);
  }
  return simulated;
}

Timeline TimelineOf(const Simulated& simulated) {
  std::string title = fmt::format("{}{}, {}", simulated.schedule,
                                  simulated.delta_n.empty() ? "" : ", ΔN " + FormatList(simulated.delta_n),
                                  CommModeName(simulated.costs.comm));
  return {simulated.lowered, simulated.costs, simulated.result,
          LabelsOfCosts(simulated.costs, std::move(title), simulated.lower_bound_ns)};
}

Json ToJson(const Simulated& simulated) {
  const SimulationResult& result = simulated.result;
  Json actions = Json::array();
  for (const auto& device : result.timeline) {
    Json row = Json::array();
    for (const ActionTiming& timing : device) {
      row.push_back({{"action", ToString(timing.action)},
                     {"start_s", Seconds(timing.start_ns)},
                     {"end_s", Seconds(timing.end_ns)}});
    }
    actions.push_back(std::move(row));
  }
  Json json{{"schedule", simulated.schedule},
            {"comm", CommModeName(simulated.costs.comm)},
            {"iteration_s", Seconds(result.iteration_ns)},
            {"bubble_ratio", result.bubble_ratio},
            {"lower_bound_s", Seconds(simulated.lower_bound_ns)},
            {"lower_bound_memory_s", nullptr},
            {"fits", result.fits},
            {"peak_bytes", nullptr},
            {"delta_n", simulated.delta_n},
            {"actions", std::move(actions)}};
  if (!result.peak_bytes.empty()) {
    json["peak_bytes"] = result.peak_bytes;
  }
  if (simulated.memory_lower_bound_ns.has_value()) {
    json["lower_bound_memory_s"] = Seconds(*simulated.memory_lower_bound_ns);
  }
  return json;
}

std::string DeviceText(const Simulated& simulated, Rows rows, int32_t columns) {
  const SimulationResult& result = simulated.result;
  const bool memory = !result.peak_bytes.empty();
  const auto row_of = [&](size_t device) {
    const double idle = result.iteration_ns == 0 ? 0 : 1 - Ratio(result.busy_ns[device], result.iteration_ns);
    return std::vector<std::string>{HumanDuration(result.busy_ns[device]), HumanPercent(idle),
                                    memory ? HumanBytes(result.peak_bytes[device]) : "-",
                                    memory ? HumanBytes(simulated.costs.memory->capacity_bytes[device]) : "-"};
  };
  const size_t count = result.busy_ns.size();
  const bool folded = rows == Rows::kFolded && count > kMaxDeviceRows;
  std::vector<std::vector<std::string>> lines;
  for (size_t first = 0, end = 0; first < count; first = end) {
    std::vector<std::string> cells = row_of(first);
    end = first + 1;
    while (folded && end < count && row_of(end) == cells) {
      ++end;
    }
    cells.insert(cells.begin(), end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1));
    lines.push_back(std::move(cells));
  }
  Table table({"DEVICE", "BUSY", "BUBBLE", "PEAK", "CAPACITY"});
  const size_t left_out = folded && lines.size() > kMaxDeviceRows ? lines.size() - kMaxDeviceRows : 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (left_out == 0 || i < kMaxDeviceRows / 2 || i >= kMaxDeviceRows / 2 + left_out) {
      table.AddRow(std::move(lines[i]));
    }
  }
  return table.Render(columns) +
         (left_out == 0 ? "" : fmt::format("({} rows in the middle are left out; -o wide shows all)\n", left_out));
}

std::string ToText(const Simulated& simulated, Rows rows, int32_t columns) {
  const SimulationResult& result = simulated.result;
  const int64_t bound_ns = simulated.TightestBoundNs();
  std::string text = fmt::format(
      "schedule   {}{}, {}, {} devices, {} micro-batches\n"
      "iteration  {} ({} above the lower bound of {}{})\n"
      "bubble     {}\n",
      simulated.schedule, simulated.delta_n.empty() ? "" : ", ΔN " + FormatList(simulated.delta_n),
      CommModeName(simulated.costs.comm), simulated.costs.shape.devices, simulated.costs.shape.micro_batches,
      HumanDuration(result.iteration_ns), HumanPercent(Excess(result.iteration_ns, bound_ns)), HumanDuration(bound_ns),
      bound_ns > simulated.lower_bound_ns ? " within this memory" : "", HumanPercent(result.bubble_ratio));
  if (!result.peak_bytes.empty()) {
    text += fmt::format("memory     {}\n", result.fits ? "fits" : "does not fit");
  }
  return WrapLines(fmt::format("{}\n{}", text, DeviceText(simulated, rows, columns)), columns);
}

}  // namespace

absl::StatusOr<int> RunSimulate(std::span<const std::string> arguments) {
  SimulateFlags options;
  FlagSet flags("geopipectl simulate",
                "Simulates one iteration of a pipeline schedule under the costs of a case file.");
  flags.AddPath("file,f", &options.case_path, "CASE.yaml", "Case file ('geopipectl explain case').");
  flags.Add("schedule", &options.schedule, "NAME", fmt::format("{}: the best that a search finds.", ScheduleNames()));
  flags.Add("delta-n", &options.delta_n, "N[,N…]",
            fmt::format("ΔN of {}: one for all crossings or one for each; 1 if not given.",
                        ScheduleNames(&ScheduleRow::uses_delta_n)));
  flags.Add("comm", &options.comm, "MODE", "nonblocking, blocking or rendezvous; the case file's if not given.");
  flags.AddPath("schedule-csv", &options.schedule_csv, "FILE", "Simulate this schedule instead of a named one.");
  options.timeline.Add(flags);
  options.common.AddFormat(flags, {"table", "wide", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (options.case_path.empty()) {
    return absl::InvalidArgumentError("no case file: name one with -f CASE.yaml");
  }
  for (const std::string_view other : {"schedule", "delta-n"}) {
    if (flags.given("schedule-csv") && flags.given(other)) {
      return absl::InvalidArgumentError(fmt::format(
          "--{} cannot be combined with --schedule-csv, which gives the whole schedule; leave one of them out", other));
    }
  }
  GP_RETURN_IF_ERROR(options.timeline.Check(
      flags, std::array<NamedFile, 2>{{{"-f", options.case_path}, {"--schedule-csv", options.schedule_csv}}}));
  GP_ASSIGN_OR_RETURN(const Simulated simulated, SimulateCase(options));
  const Timeline timeline = TimelineOf(simulated);
  GP_RETURN_IF_ERROR(OrFailed(ExportTimeline(options.timeline, timeline)));
  if (options.timeline.to_standard_output()) {
    return kExitOk;
  }
  if (options.common.output == OutputFormat::kTable || options.common.output == OutputFormat::kWide) {
    PrintOut(
        "{}{}",
        ToText(simulated, options.common.output == OutputFormat::kWide ? Rows::kAll : Rows::kFolded, TextColumns()),
        options.timeline.gantt ? fmt::format("\n{}", GanttText(timeline)) : "");
  } else {
    PrintDocument(ToJson(simulated), options.common.output);
  }
  return kExitOk;
}

}  // namespace geopipe
