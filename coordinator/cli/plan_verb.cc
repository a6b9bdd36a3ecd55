// geopipectl plan: what a job would do on a cluster, before anything runs.
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>

#include "coordinator/cli/explain_output.h"
#include "coordinator/cli/format.h"
#include "coordinator/cli/plan_output.h"
#include "coordinator/cli/plan_sweep.h"
#include "coordinator/cli/terminal.h"
#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/report/plan_explanation.h"
#include "optimizer/simulator/simulator.h"
#include "proto/manifest/job_manifest.h"
#include "runtime/base/clock.h"
#include "runtime/base/thread_pool.h"

namespace geopipe {
namespace {

constexpr int32_t kMostThreads = 16;
constexpr int32_t kWideTerminal = 100;

struct PlanFlags {
  CommonFlags common;
  std::string job_path;
  std::string topology_path;
  std::string profile_path;
  std::string search = "genetic";
  std::optional<uint64_t> seed;
  bool explain = false;
  TimelineFlags timeline;
  SweepFlags sweep;
};

struct Planned {
  PlanResult result;
  SimulationResult simulated;  // recorded
  std::optional<PlanExplanation> explanation;
  int64_t wall_ns = 0;
};

absl::StatusOr<PlanRequest> ReadRequest(const PlanFlags& flags) {
  PlanRequest request;
  GP_ASSIGN_OR_RETURN(request.job, ReadJobFile(flags.job_path));
  GP_ASSIGN_OR_RETURN(request.cluster, ReadTopologyFile(flags.topology_path));
  if (!flags.profile_path.empty()) {
    GP_ASSIGN_OR_RETURN(request.profile, ReadProfileFile(flags.profile_path, &request.cluster));
  }
  if (flags.search == "exhaustive") {
    request.method = SearchMethod::kExhaustive;
  } else if (flags.search != "genetic") {
    return absl::InvalidArgumentError(
        fmt::format("--search {}: unknown method; use genetic or exhaustive", flags.search));
  }
  if (flags.seed) {
    request.job.search.seed = *flags.seed;
  }
  return request;
}

absl::StatusOr<Planned> MakeTimedPlan(PlanRequest request, bool explain, Clock& clock) {
  const int64_t start_ns = clock.NowNs();
  const int64_t deadline_ns = start_ns + request.job.search.time_budget_ns;
  request.should_stop = [&clock, deadline_ns] { return clock.NowNs() >= deadline_ns; };
  ThreadPool pool(ThreadPool::Processors(kMostThreads));
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  Planned planned;
  GP_ASSIGN_OR_RETURN(planned.result, MakePlan(request));
  planned.wall_ns = clock.NowNs() - start_ns;
  GP_ASSIGN_OR_RETURN(planned.simulated,
                      Simulate(planned.result.schedule, planned.result.costs, {.record_timeline = true}));
  if (explain) {
    GP_ASSIGN_OR_RETURN(planned.explanation, ExplainPlan(request.job, planned.result, planned.simulated));
  }
  return planned;
}

std::string_view MethodName(SearchMethod method) { return method == SearchMethod::kGenetic ? "genetic" : "exhaustive"; }

Json ToJson(const Planned& planned) {
  const SearchReport& search = planned.result.search;
  Json rejected = Json::array();
  for (const RejectedAlternative& alternative : search.rejected) {
    rejected.push_back({{"change", alternative.change}, {"reason", alternative.reason}});
  }
  Json best_so_far = Json::array();
  for (const int64_t best_ns : search.best_so_far_ns) {
    best_so_far.push_back(Seconds(best_ns));
  }
  Json report{{"method", MethodName(search.method)},
              {"evaluations", search.evaluations},
              {"space_size", search.space_size},
              {"wall_s", Seconds(planned.wall_ns)},
              {"seed", search.seed},
              {"best_so_far_s", std::move(best_so_far)},
              {"rejected", std::move(rejected)}};
  if (search.stopped_early) {
    report["stopped"] = "time";
  }
  if (search.unproven > 0) {
    report["unproven"] = search.unproven;
  }
  Json json{{"plan", PlanToJson(planned.result.plan)},
            {"predicted", PredictionToJson(planned.result.prediction)},
            {"baselines", BaselinesToJson(planned.result.baselines)},
            {"search", std::move(report)}};
  if (!planned.result.cost_reports.empty()) {
    json["costs"] = CostReportsToJson(planned.result.cost_reports);
  }
  if (planned.explanation.has_value()) {
    json["explanation"] = ExplanationToJson(*planned.explanation, planned.result);
  }
  return json;
}

std::string ToText(const Planned& planned) {
  const PlanResult& result = planned.result;
  std::string text =
      fmt::format("plan          {}\ndegrees       tensor {}, pipeline {}, data {}\n{}{}\n{}\n{}",
                  PlanHeadline(result.plan), result.plan.grid.tensor, result.plan.grid.pipeline, result.plan.grid.data,
                  PredictionText(result.prediction), CostReportText(result.cost_reports, result.plan),
                  StageTable(result.plan), BaselineTable(result.baselines, result.prediction.iteration_ns));
  const SearchReport& search = result.search;
  text += fmt::format("\nsearch: {}, {} evaluations in a space of {}, {}, seed {}{}{}\n", MethodName(search.method),
                      HumanCount(search.evaluations), HumanCount(search.space_size), HumanDuration(planned.wall_ns),
                      search.seed, search.stopped_early ? ", stopped: time" : "",
                      search.unproven > 0
                          ? fmt::format(", not proven: {} orders or degrees have too many candidates and were left out",
                                        search.unproven)
                          : "");
  if (!search.rejected.empty()) {
    Table table({"NOT TAKEN", "BECAUSE"});
    for (const RejectedAlternative& alternative : search.rejected) {
      table.AddRow({alternative.change, alternative.reason});
    }
    text += fmt::format("\n{}", table.Render());
  }
  if (planned.explanation.has_value()) {
    text += fmt::format("\n{}", ExplanationText(*planned.explanation, result));
  }
  return text;
}

}  // namespace

int RunPlan(std::span<const std::string> arguments) {
  PlanFlags options;
  FlagSet flags("geopipectl plan", "Plans a job on a cluster and says what it would do, and why.");
  flags.Add("file,f", &options.job_path, "JOB.yaml", "Job file ('geopipectl explain job').");
  flags.Add("topology", &options.topology_path, "FILE", "Topology file ('geopipectl explain topology').");
  flags.Add("profile", &options.profile_path, "FILE",
            "Measured costs ('geopipectl explain profile'), which replace the model and correct it elsewhere.");
  flags.Add("search", &options.search, "METHOD", "genetic, or exhaustive for small spaces.");
  flags.Add("seed", &options.seed, "N", "Seed of the search; the job's if not given.");
  flags.Add("explain", &options.explain, "Say what binds each stage, where the bubble comes from and what would help.");
  options.timeline.Add(flags);
  options.sweep.Add(flags);
  options.common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (options.job_path.empty() || options.topology_path.empty()) {
    return Fail(absl::InvalidArgumentError("a plan needs a job and a cluster: -f JOB.yaml --topology FILE"),
                kExitBadInput);
  }
  absl::StatusOr<PlanRequest> request = ReadRequest(options);
  if (!request.ok()) {
    return Fail(request.status(), LocalExitCode(request.status()));
  }
  if (!options.sweep.given() && (flags.given("steps") || flags.given("sweep-schedules"))) {
    return Fail(absl::InvalidArgumentError("--steps and --sweep-schedules are about --sweep; add it or leave them out"),
                kExitBadInput);
  }
  if (options.sweep.given() && options.explain) {
    return Fail(absl::InvalidArgumentError("--explain is about one plan and --sweep makes many; leave one of them out"),
                kExitBadInput);
  }
  if (options.sweep.given()) {
    return RunPlanSweep(options.sweep, options.timeline, *std::move(request), Clock::Real(), options.common.output);
  }
  const absl::StatusOr<Planned> planned = MakeTimedPlan(*std::move(request), options.explain, Clock::Real());
  if (!planned.ok()) {
    return Fail(planned.status(), LocalExitCode(planned.status()));
  }
  const PlanResult& result = planned->result;
  const Timeline timeline{result.schedule, result.costs, planned->simulated,
                          LabelsOfPlan(result.plan, result.prediction.lower_bound_ns)};
  if (const absl::Status status = ExportTimeline(options.timeline, timeline); !status.ok()) {
    return Fail(status, kExitFailed);
  }
  if (options.common.output != OutputFormat::kTable) {
    PrintDocument(ToJson(*planned), options.common.output);
    return kExitOk;
  }
  // On a terminal that is wide enough for it, a plan shows itself.
  const bool gantt = options.timeline.gantt || (OutputIsTerminal() && TerminalColumns() >= kWideTerminal);
  fmt::print("{}{}", ToText(*planned),
             gantt ? fmt::format("\ntimeline of one iteration\n{}", GanttText(timeline)) : "");
  return kExitOk;
}

}  // namespace geopipe
