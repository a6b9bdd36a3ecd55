// geopipectl plan: what a job would do on a cluster, before anything runs.
#include "coordinator/cli/plan_verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "coordinator/cli/asked_cluster.h"
#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/job_inputs.h"
#include "coordinator/cli/plan_sweep.h"
#include "coordinator/cli/render/alternatives_output.h"
#include "coordinator/cli/render/explanation_output.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/memory_output.h"
#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/schedule_file.h"
#include "coordinator/cli/timeline_output.h"
#include "coordinator/cli/verb.h"
#include "coordinator/cli/what_if.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/alternatives.h"
#include "optimizer/plan/choice_costs.h"
#include "optimizer/plan/frugal_plan.h"
#include "optimizer/plan/given_schedule.h"
#include "optimizer/plan/omissions.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/report/baselines.h"
#include "optimizer/plan/report/memory_breakdown.h"
#include "optimizer/plan/report/plan_explanation.h"
#include "optimizer/plan/report/time_breakdown.h"
#include "optimizer/plan/site_planner.h"
#include "optimizer/simulator/simulator.h"
#include "runtime/base/clock.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"
#include "runtime/base/thread_pool.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

constexpr int32_t kMaxSearchThreads = 16;
constexpr int32_t kWideTerminal = 100;
constexpr int64_t kChoicesNs = 20'000'000'000;    // for what other choices would cost
constexpr int64_t kOmissionsNs = 20'000'000'000;  // for what the job and the topology leave out

struct PlanFlags {
  CommonFlags common;
  std::string job_path;
  std::string topology_path;
  bool from_sites = false;
  std::string profile_path;
  std::string search = "genetic";
  std::optional<uint64_t> seed;
  std::string attention;
  std::string roofline;
  std::string reserve;
  std::string schedule_csv;
  bool explain = false;
  TimelineFlags timeline;
  SweepFlags sweep;
  WhatIfFlags what_if;
};

// Replaces what the topology says of all its devices by what the flags say.
absl::Status OverrideDevices(const PlanFlags& flags, ClusterSpec& cluster) {
  std::optional<Attention> attention;
  if (flags.attention == "dense" || flags.attention == "blocked") {
    attention = flags.attention == "dense" ? Attention::kDense : Attention::kBlocked;
  } else if (!flags.attention.empty()) {
    return absl::InvalidArgumentError(fmt::format("--attention {}: use dense or blocked", flags.attention));
  }
  std::optional<Roofline> roofline;
  if (flags.roofline == "block" || flags.roofline == "operation") {
    roofline = flags.roofline == "block" ? Roofline::kBlock : Roofline::kOperation;
  } else if (!flags.roofline.empty()) {
    return absl::InvalidArgumentError(fmt::format("--roofline {}: use block or operation", flags.roofline));
  }
  std::optional<int64_t> reserve_bytes;
  if (!flags.reserve.empty()) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(flags.reserve);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(fmt::format("--reserve: {}", std::string(parsed.status().message())));
    }
    reserve_bytes = *parsed;
  }
  for (SiteSpec& site : cluster.sites) {
    site.device.attention = attention.has_value() ? attention : site.device.attention;
    site.device.roofline = roofline.has_value() ? roofline : site.device.roofline;
    site.device.reserve_bytes = reserve_bytes.has_value() ? reserve_bytes : site.device.reserve_bytes;
  }
  return ValidateCluster(cluster);
}

absl::StatusOr<ClusterSpec> ReadCluster(const PlanFlags& flags) {
  const DeviceFigures figures = flags.profile_path.empty() ? DeviceFigures::kNeeded : DeviceFigures::kOptional;
  if (!flags.from_sites) {
    return ReadTopologyFile(flags.topology_path, figures);
  }
  ControlClient client(flags.common.server, flags.common.timeout_ns);
  return ClusterOfSites(client, figures);
}

absl::StatusOr<PlanRequest> ReadRequest(const PlanFlags& flags) {
  PlanRequest request;
  GP_ASSIGN_OR_RETURN(request.job, ReadJobFile(flags.job_path));
  GP_RETURN_IF_ERROR(CheckDataHere(request.job, flags.job_path));
  GP_ASSIGN_OR_RETURN(request.cluster, ReadCluster(flags));
  if (flags.search == "exhaustive") {
    request.method = SearchMethod::kExhaustive;
  } else if (flags.search != "genetic") {
    return absl::InvalidArgumentError(
        fmt::format("--search {}: unknown method; use genetic or exhaustive", flags.search));
  }
  if (flags.seed) {
    request.job.search.seed = *flags.seed;
  }
  GP_RETURN_IF_ERROR(OverrideDevices(flags, request.cluster));
  if (!flags.profile_path.empty()) {
    const ProfileUse use{request.job, request.cluster};
    GP_ASSIGN_OR_RETURN(ProfileFile file, ReadProfileFile(flags.profile_path, &use));
    request.profile = std::move(file.profile);
  }
  if (!flags.schedule_csv.empty()) {
    GP_ASSIGN_OR_RETURN(request.schedule, ReadScheduleFile(flags.schedule_csv));
    const absl::Status status = JobWithSchedule(request.job, request.schedule->shape).status();
    GP_RETURN_IF_ERROR(AttributeToJobFile(flags.job_path, status));
  }
  return request;
}

// Files that the command reads.
std::vector<NamedFile> FilesOf(const PlanFlags& flags, const JobSpec& job) {
  std::vector<NamedFile> files = FilesOfJob(job);
  files.insert(files.end(), {{"-f", flags.job_path},
                             {"--topology", flags.topology_path},
                             {"--profile", flags.profile_path},
                             {"--schedule-csv", flags.schedule_csv}});
  return files;
}

absl::StatusOr<Explanation> Explain(const PlanRequest& request, const Planned& planned) {
  Explanation explanation;
  const CostSource source(request.job, request.cluster, request.profile.has_value() ? &*request.profile : nullptr);
  GP_ASSIGN_OR_RETURN(explanation.plan, ExplainPlan(request.job, planned.result, planned.simulated));
  GP_ASSIGN_OR_RETURN(explanation.time,
                      BreakDownTime(request.job, request.cluster, source, planned.result, planned.simulated));
  if (!request.schedule.has_value()) {
    explanation.choices = CostsOfChoices(request, planned.result);
  }
  return explanation;
}

}  // namespace

absl::StatusOr<Planned> MakeTimedPlan(PlanRequest request, bool explain, Clock& clock, ProgressMeter& progress,
                                      const std::string& what) {
  progress.Begin({.what = what});
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  const int64_t start_ns = clock.NowNs();
  int64_t deadline_ns = start_ns + request.job.search.time_budget_ns;
  request.should_stop = [&clock, &deadline_ns] { return clock.NowNs() >= deadline_ns; };
  ThreadPool pool(ThreadPool::Processors(kMaxSearchThreads));
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  request.single_site = false;  // the alternatives have it
  request.weigh_memory = true;
  std::atomic<bool> failed = false;
  PlanRequest alone = request;
  alone.weigh_memory = false;
  alone.parallel_for = {};
  alone.schedule.reset();  // a given schedule is of the pipeline over all sites
  alone.should_stop = [&] { return failed || clock.NowNs() >= deadline_ns; };
  SitePlanner sites(std::move(alone));
  request.progress = [&progress](int64_t evaluations, int64_t best_ns) { progress.Searched(evaluations, best_ns); };
  // Sites are planned meanwhile, since that does not depend on the plan.
  std::thread meanwhile([&] { FindAlternatives(sites, request.cluster, nullptr); });
  absl::StatusOr<PlanResult> result = MakePlan(request);
  request.progress = {};
  Planned planned;
  planned.wall_ns = clock.NowNs() - start_ns;
  failed = !result.ok();
  meanwhile.join();
  GP_ASSIGN_OR_RETURN(planned.result, std::move(result));
  planned.figures = FiguresOf(request.job, request.cluster, planned.result);
  GP_ASSIGN_OR_RETURN(planned.simulated,
                      Simulate(planned.result.schedule, planned.result.costs, {.record_timeline = true}));
  progress.Begin({.what = fmt::format("{}, alternatives", what), .limit_ns = request.job.search.time_budget_ns});
  deadline_ns = clock.NowNs() + request.job.search.time_budget_ns;  // as long again
  planned.alternatives = FindAlternatives(sites, request.cluster, &planned.result);
  PutAmongBaselines(planned.alternatives, planned.result);
  if (!planned.alternatives.Of(AlternativeKind::kSingleSite).found()) {
    const CostSource source(request.job, request.cluster, request.profile.has_value() ? &*request.profile : nullptr);
    std::ranges::move(SingleSiteBaseline(request, source, planned.result),
                      std::back_inserter(planned.result.baselines));
  }
  planned.memory = BreakDownMemory(request.job, request.cluster, planned.result);
  deadline_ns = clock.NowNs() + kOmissionsNs;
  planned.omissions = CostlyOmissions(request, planned.result);
  if (explain) {
    progress.Begin({.what = "what each choice costs", .limit_ns = kChoicesNs});
    deadline_ns = clock.NowNs() + kChoicesNs;
    GP_ASSIGN_OR_RETURN(planned.explanation, Explain(request, planned));
  }
  return planned;
}

namespace {

std::string_view MethodName(SearchMethod method) { return method == SearchMethod::kGenetic ? "genetic" : "exhaustive"; }

Json OmissionsToJson(const std::vector<Omission>& omissions) {
  Json json = Json::array();
  for (const Omission& omission : omissions) {
    json.push_back(
        {{"key", omission.key}, {"iteration_s", Seconds(omission.iteration_ns)}, {"says", omission.sentence}});
  }
  return json;
}

// The other plan of the trade between speed and memory; null when there is none.
Json TradeToJson(const PlanResult& result) {
  if (!result.traded.has_value()) {
    return nullptr;
  }
  return {{"iteration_s", Seconds(result.traded->iteration_ns)},
          {"fullest_device_bytes", result.traded->fullest_device_bytes}};
}

}  // namespace

Json PlannedToJson(const Planned& planned) {
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
            {"figures", FiguresToJson(planned.figures)},
            {"memory", MemoryToJson(planned.memory)},
            {"baselines", BaselinesToJson(planned.result.baselines)},
            {"warnings", planned.result.warnings},
            {"omissions", OmissionsToJson(planned.omissions)},
            {"memory_for_speed", TradeToJson(planned.result)},
            {"alternatives", AlternativesToJson(planned.alternatives, planned.result)},
            {"search", std::move(report)}};
  if (!planned.result.cost_reports.empty()) {
    json["costs"] = CostReportsToJson(planned.result.cost_reports);
  }
  if (planned.explanation.has_value()) {
    json["explanation"] = ExplanationToJson(*planned.explanation, planned.result);
  }
  return json;
}

namespace {

// "memory        9.739 s with 68.7 GiB on the fullest device; 9.955 s with 31.2 GiB (search.prefer: memory)". Empty
// where there is nothing to trade.
std::string TradeText(const PlanResult& result) {
  if (!result.traded.has_value()) {
    return "";
  }
  const bool is_fast = result.prediction.iteration_ns <= result.traded->iteration_ns;
  return fmt::format("memory        {} with {} on the fullest device; {} with {} (search.prefer: {})\n",
                     HumanDuration(result.prediction.iteration_ns), HumanBytes(FullestDeviceBytes(result.plan)),
                     HumanDuration(result.traded->iteration_ns), HumanBytes(result.traded->fullest_device_bytes),
                     is_fast ? "memory" : "speed");
}

std::string OmissionText(const std::vector<Omission>& omissions) {
  std::string text;
  for (const Omission& omission : omissions) {
    text += fmt::format("left out      {}\n", omission.sentence);
  }
  return text;
}

// Sizes are saturated.
std::string SpaceText(int64_t candidates) {
  return candidates == std::numeric_limits<int64_t>::max() ? "more than 9e18" : HumanCount(candidates);
}

// Leaves out those that stand among the alternatives.
std::vector<Baseline> OfSchedules(std::vector<Baseline> baselines) {
  std::erase_if(baselines, [](const Baseline& each) {
    return each.fits && (each.scope == BaselineScope::kSingleSite || each.scope == BaselineScope::kSiteReplicas);
  });
  return baselines;
}

std::string ToText(const Planned& planned, View view) {
  const PlanResult& result = planned.result;
  const std::string memory = MemoryText(planned.memory, view);
  std::string text =
      fmt::format("plan          {}\ndegrees       tensor {}, pipeline {}, data {}\n{}{}{}{}{}{}\n{}{}\n{}",
                  PlanHeadline(result.plan), result.plan.grid.tensor, result.plan.grid.pipeline, result.plan.grid.data,
                  WarningText(result.warnings), OmissionText(planned.omissions), TradeText(result),
                  PredictionText(result.prediction), FiguresText(planned.figures, view),
                  CostReportText(result.cost_reports, result.plan), StageTable(result.plan, view),
                  memory.empty() ? "" : "\n" + memory,
                  BaselineTable(OfSchedules(result.baselines), result.prediction.iteration_ns, view));
  text += fmt::format("\n{}", AlternativesText(planned.alternatives, result, view));
  const SearchReport& search = result.search;
  text += fmt::format("\nsearch: {}, {} evaluations in a space of {}, {}, seed {}{}{}\n", MethodName(search.method),
                      HumanCount(search.evaluations), SpaceText(search.space_size), HumanDuration(planned.wall_ns),
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
    text += fmt::format("\n{}", table.Render(view.columns));
  }
  if (planned.explanation.has_value()) {
    text += fmt::format("\n{}", ExplanationText(*planned.explanation, result, view));
  }
  return WrapLines(text, view.columns);
}

absl::Status CheckInputs(const PlanFlags& options, const FlagSet& flags) {
  if (options.job_path.empty() || (options.topology_path.empty() && !options.from_sites)) {
    return absl::InvalidArgumentError(
        "a plan needs a job and a cluster: -f JOB.yaml and --topology FILE, or --from-sites where a coordinator runs");
  }
  if (!options.topology_path.empty() && options.from_sites) {
    return absl::InvalidArgumentError(
        "--topology and --from-sites both say what the cluster is; leave one of them out");
  }
  if (!options.from_sites && (flags.given("server") || flags.given("timeout"))) {
    return absl::InvalidArgumentError("--server and --timeout are about --from-sites; add it or leave them out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> RunPlan(std::span<const std::string> arguments) {
  PlanFlags options;
  FlagSet flags("geopipectl plan", "Plans a job on a cluster and says what it would do, and why.");
  flags.AddPath("file,f", &options.job_path, "JOB.yaml", "Job file ('geopipectl explain job').");
  flags.AddPath("topology", &options.topology_path, "FILE", "Topology file ('geopipectl explain topology').");
  flags.Add("from-sites", &options.from_sites,
            "Plan for the federation as the coordinator knows it, all devices of its connected nodes, in place of a "
            "topology file.");
  options.common.AddServer(flags);
  flags.AddPath("profile", &options.profile_path, "FILE",
                "Measured costs ('geopipectl explain profile'), which replace the model and correct it elsewhere.");
  flags.Add("search", &options.search, "METHOD", "genetic, or exhaustive for small spaces.");
  flags.Add("seed", &options.seed, "N", "Seed of the search; the job's if not given.");
  flags.Add("attention", &options.attention, "HOW", "dense or blocked on all devices, whatever the topology says.");
  flags.Add("roofline", &options.roofline, "HOW", "block or operation on all devices, whatever the topology says.");
  flags.Add("reserve", &options.reserve, "BYTES",
            "Memory of each device that no plan may use, whatever the topology says.");
  flags.AddPath("schedule-csv", &options.schedule_csv, "FILE",
                "Plan with exactly this schedule, a row for each pipeline rank, as PyTorch and --export-csv write it.");
  flags.Add("explain", &options.explain,
            "Say where the iteration goes, what each choice costs, what binds each stage and what would help.");
  options.timeline.Add(flags);
  options.sweep.Add(flags);
  options.what_if.Add(flags);
  options.common.AddFormat(flags, {"table", "wide", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  GP_RETURN_IF_ERROR(CheckInputs(options, flags));
  GP_RETURN_IF_ERROR(CheckOneStandardInput({options.job_path, options.topology_path, options.profile_path}));
  if (!options.sweep.given() && (flags.given("steps") || flags.given("sweep-schedules"))) {
    return absl::InvalidArgumentError("--steps and --sweep-schedules are about --sweep; add it or leave them out");
  }
  if (options.sweep.given() && flags.given("schedule-csv")) {
    return absl::InvalidArgumentError("--schedule-csv is of one plan and --sweep makes many; leave one of them out");
  }
  GP_ASSIGN_OR_RETURN(PlanRequest request, ReadRequest(options));
  GP_RETURN_IF_ERROR(options.timeline.Check(flags, FilesOf(options, request.job)));
  if (options.sweep.given() && options.explain) {
    return absl::InvalidArgumentError("--explain is about one plan and --sweep makes many; leave one of them out");
  }
  if (options.what_if.given()) {
    GP_RETURN_IF_ERROR(options.what_if.Check(options.explain, options.sweep.given(), options.timeline));
    const absl::StatusOr<int> shown =
        RunWhatIf(options.what_if, std::move(request), Clock::Real(), options.common.output);
    return shown.ok() ? shown : AttributeToJobFile(options.job_path, shown.status());
  }
  if (options.sweep.given()) {
    return RunPlanSweep(options.sweep, options.timeline, std::move(request), Clock::Real(), options.common.output);
  }
  ProgressMeter progress;
  absl::StatusOr<Planned> made = MakeTimedPlan(std::move(request), options.explain, Clock::Real(), progress);
  progress.End();
  if (!made.ok()) {
    return AttributeToJobFile(options.job_path, made.status());
  }
  const Planned& planned = *made;
  const PlanResult& result = planned.result;
  const Timeline timeline{result.schedule, result.costs, planned.simulated,
                          LabelsOfPlan(result.plan, result.prediction.lower_bound_ns)};
  GP_RETURN_IF_ERROR(OrFailed(ExportTimeline(options.timeline, timeline)));
  if (options.timeline.to_standard_output()) {
    return kExitOk;
  }
  const OutputFormat output = options.common.output;
  if (output == OutputFormat::kJson || output == OutputFormat::kYaml) {
    PrintDocument(PlannedToJson(planned), output);
    return kExitOk;
  }
  // A terminal that is wide enough gets a chart without being asked.
  const bool gantt = options.timeline.gantt || (OutputIsTerminal() && TerminalColumns() >= kWideTerminal);
  PrintOut("{}{}", ToText(planned, {output == OutputFormat::kWide ? Rows::kAll : Rows::kFolded, TextColumns()}),
           gantt ? fmt::format("\ntimeline of one iteration\n{}", GanttText(timeline)) : "");
  return kExitOk;
}

}  // namespace geopipe
