#include "coordinator/cli/job_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/cli/job_checkpoints.h"
#include "coordinator/cli/job_memory.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/run_report.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/terminal.h"

namespace geopipe {
namespace {

absl::StatusOr<std::vector<Baseline>> BaselinesOf(const v1::JobDetail& detail) {
  std::vector<Baseline> baselines;
  for (const v1::Baseline& message : detail.baselines()) {
    GP_ASSIGN_OR_RETURN(Baseline baseline, FromProto(message));
    baselines.push_back(std::move(baseline));
  }
  return baselines;
}

Json RecoveriesToJson(const v1::JobDetail& detail) {
  Json recoveries = Json::array();
  for (const v1::RecoverySummary& recovery : detail.recoveries()) {
    const bool ended = recovery.ended_unix_time_ns() > 0;
    const bool begun = !recovery.source().empty();
    Json workers = Json::array();
    for (const v1::LostWorker& worker : recovery.workers()) {
      workers.push_back({{"worker", fmt::format("{}/{}/{}", worker.site(), worker.node(), worker.device())},
                         {"unix_time_ns", worker.unix_time_ns()},
                         {"cause", worker.cause()}});
    }
    recoveries.push_back({{"kind", recovery.kind()},
                          {"cause", recovery.cause()},
                          {"workers", std::move(workers)},
                          {"begun_unix_time_ns", recovery.begun_unix_time_ns()},
                          {"ended_unix_time_ns", ended ? Json(recovery.ended_unix_time_ns()) : Json(nullptr)},
                          {"lost_ns", ended ? Json(recovery.lost_ns()) : Json(nullptr)},
                          {"reached_iteration", recovery.reached_iteration()},
                          {"first_iteration", begun ? Json(recovery.first_iteration()) : Json(nullptr)},
                          {"source", begun ? Json(recovery.source()) : Json(nullptr)}});
  }
  return recoveries;
}

std::string EpochTable(const v1::JobDetail& detail, int32_t columns) {
  Table table({"EPOCH", "BEGUN (UTC)", "ENDED (UTC)", "ITERATIONS", "SITES", "CAUSE"});
  for (const v1::EpochSummary& epoch : detail.epochs()) {
    const bool ended = epoch.ended_unix_time_ns() > 0;
    table.AddRow(
        {std::to_string(epoch.number()), TimeText(epoch.begun_unix_time_ns()),
         ended ? TimeText(epoch.ended_unix_time_ns()) : "-",
         fmt::format("{}-{}", epoch.first_iteration(), ended ? std::to_string(epoch.next_iteration() - 1) : ""),
         fmt::format("{}", fmt::join(epoch.sites(), ",")), epoch.cause()});
  }
  return table.Render(columns);
}

// Empty: the job has lost nothing.
std::string RecoveryTable(const v1::JobDetail& detail, int32_t columns) {
  if (detail.recoveries_size() == 0) {
    return "";
  }
  Table table({"LOSS (UTC)", "LOST", "REPEATED", "FROM", "CAUSE"});
  for (const v1::RecoverySummary& recovery : detail.recoveries()) {
    const bool ended = recovery.ended_unix_time_ns() > 0;
    const int64_t repeated = std::max<int64_t>(0, recovery.reached_iteration() - recovery.first_iteration());
    table.AddRow({TimeText(recovery.begun_unix_time_ns()), ended ? HumanDuration(recovery.lost_ns()) : "-",
                  recovery.source().empty() ? "-" : std::to_string(repeated),
                  recovery.source().empty() ? "-" : recovery.source(), recovery.cause()});
  }
  return fmt::format("\n{}", table.Render(columns));
}

// The latest evaluations. Empty: there is none.
std::string EvaluationTable(const v1::JobDetail& detail, int32_t columns) {
  constexpr int kShown = 10;
  if (detail.evaluations_size() == 0) {
    return "";
  }
  Table table({"EVALUATED AFTER", "VALIDATION LOSS", "TIME"});
  for (int i = std::max(0, detail.evaluations_size() - kShown); i < detail.evaluations_size(); ++i) {
    const v1::EvaluationSummary& each = detail.evaluations(i);
    table.AddRow({std::to_string(each.iteration()), each.has_loss() ? fmt::format("{:.4f}", each.loss()) : "-",
                  each.incomplete() ? "its report is lost" : HumanDuration(each.duration_ns())});
  }
  return fmt::format("\n{}", table.Render(columns));
}

}  // namespace

absl::StatusOr<Json> DescriptionToJson(const v1::JobDetail& detail, const std::optional<ComparedRun>& compared) {
  RunReport report;
  report.detail = detail;
  GP_ASSIGN_OR_RETURN(Json json, RunReportToJson(report));
  json.erase("iterations");
  json.erase("artifacts");
  json["run"] = detail.summary().run();
  json["epoch"] = detail.summary().epoch();
  json["iterations_done"] = detail.summary().iterations_done();
  json["iterations_total"] = detail.summary().iterations_total();
  json["trouble"] = detail.summary().trouble().empty() ? Json(nullptr) : Json(detail.summary().trouble());
  GP_ASSIGN_OR_RETURN(const std::vector<Baseline> baselines, BaselinesOf(detail));
  json["baselines"] = BaselinesToJson(baselines);
  json["search"] = detail.search_summary();
  Json transitions = Json::array();
  for (const v1::JobTransition& transition : detail.transitions()) {
    transitions.push_back({{"state", JobStateName(transition.state())},
                           {"unix_time_ns", transition.unix_time_ns()},
                           {"cause", transition.cause()}});
  }
  json["transitions"] = std::move(transitions);
  Json epochs = Json::array();
  for (const v1::EpochSummary& epoch : detail.epochs()) {
    const bool ended = epoch.ended_unix_time_ns() > 0;
    epochs.push_back({{"epoch", epoch.number()},
                      {"first_iteration", epoch.first_iteration()},
                      {"next_iteration", ended ? Json(epoch.next_iteration()) : Json(nullptr)},
                      {"begun_unix_time_ns", epoch.begun_unix_time_ns()},
                      {"ended_unix_time_ns", ended ? Json(epoch.ended_unix_time_ns()) : Json(nullptr)},
                      {"sites", std::vector<std::string>(epoch.sites().begin(), epoch.sites().end())},
                      {"cause", epoch.cause()}});
  }
  json["epochs"] = std::move(epochs);
  json["recoveries"] = RecoveriesToJson(detail);
  json["warnings"] = std::vector<std::string>(detail.warnings().begin(), detail.warnings().end());
  json["checkpoints"] = CheckpointsToJson(detail);
  json["checkpoint_trouble"] = detail.checkpoint_trouble().empty() ? Json(nullptr) : Json(detail.checkpoint_trouble());
  json["manifest"] = detail.manifest();
  json["comparison"] = compared.has_value() ? ComparisonJson(compared->comparison, compared->data.plan) : Json(nullptr);
  return json;
}

absl::StatusOr<std::string> DescriptionText(const v1::JobDetail& detail, const std::optional<ComparedRun>& compared,
                                            const DescriptionOptions& options) {
  const v1::JobSummary& summary = detail.summary();
  std::string text = fmt::format("job           {}\n", summary.name());
  if (options.shows_run || summary.run() > 1) {
    text += fmt::format("run           {}\n", summary.run());
  }
  text += fmt::format("state         {}: {}\niteration     {}/{}\n", JobStateName(summary.state()), summary.cause(),
                      summary.iterations_done(), summary.iterations_total());
  if (!summary.trouble().empty()) {
    text += fmt::format("warning       {}\n", summary.trouble());
  }
  if (summary.has_last_loss()) {
    text += fmt::format("loss          {:.4f}\n", summary.last_loss());
  }
  text += ValidationText(detail);
  if (detail.has_plan()) {
    GP_ASSIGN_OR_RETURN(const Plan plan, FromProto(detail.plan()));
    GP_ASSIGN_OR_RETURN(const Prediction prediction, FromProto(detail.prediction()));
    GP_ASSIGN_OR_RETURN(const std::vector<Baseline> baselines, BaselinesOf(detail));
    text += fmt::format("plan          {} (epoch {})\nsearch        {}\n{}", PlanHeadline(plan), summary.epoch(),
                        detail.search_summary(), WarningText({detail.warnings().begin(), detail.warnings().end()}));
    text += fmt::format("\npredicted before iteration 0:\n{}", PredictionText(prediction));
    if (detail.measured().iterations() > 0) {
      text += fmt::format("\nmeasured (median of {}):\niteration     {}\nbubble        {}\nthroughput    {} tokens/s\n",
                          detail.measured().iterations(), HumanDuration(detail.measured().iteration_ns()),
                          HumanPercent(detail.measured().bubble_ratio()),
                          HumanCount(static_cast<int64_t>(detail.measured().tokens_per_s())));
    }
    if (compared.has_value()) {
      text += fmt::format("actions       95 % begin within {} of their predicted time\n",
                          HumanDuration(compared->comparison.start_error_p95_ns));
      text += fmt::format("\n{}\ndeviation     {}\n",
                          ComparisonText(compared->comparison, compared->data.plan, options.columns),
                          LargestDeviation(compared->comparison, compared->data.plan));
    }
    text += fmt::format("\n{}", StageTable(plan, {Rows::kFolded, options.columns}));
    GP_ASSIGN_OR_RETURN(const std::vector<StageRanksMemory> memory, MemoryOfJob(detail));
    text += memory.empty() ? "" : fmt::format("\n{}", RankMemoryText(memory, {Rows::kFolded, options.columns}));
    if (!baselines.empty()) {
      text += fmt::format("\n{}", BaselineTable(baselines, prediction.iteration_ns, {Rows::kFolded, options.columns}));
    }
  }
  std::string epochs;
  if (detail.epochs_size() > 1) {
    epochs = fmt::format("\n{}", EpochTable(detail, options.columns));
  }
  const std::string evaluations = EvaluationTable(detail, options.columns);
  const std::string listed = CheckpointText(detail, options.columns);
  const std::string checkpoints = listed.empty() ? "" : fmt::format("\n{}", listed);
  Table transitions({"TIME (UTC)", "STATE", "CAUSE"});
  for (const v1::JobTransition& transition : detail.transitions()) {
    transitions.AddRow(
        {TimeText(transition.unix_time_ns()), std::string(JobStateName(transition.state())), transition.cause()});
  }
  text += fmt::format("{}{}{}{}\n{}\njob file, with every default:\n", epochs, RecoveryTable(detail, options.columns),
                      evaluations, checkpoints, transitions.Render(options.columns));
  return WrapLines(text, options.columns) + detail.manifest();
}

}  // namespace geopipe
