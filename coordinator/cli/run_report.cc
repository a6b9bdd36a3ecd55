#include "coordinator/cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "coordinator/cli/job_memory.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/rehearsal/host/stolen_time.h"

namespace geopipe {

double MeanOfLastLosses(const std::vector<v1::IterationSummary>& iterations, size_t count) {
  GP_CHECK(!iterations.empty());
  const size_t n = std::min(count, iterations.size());
  double sum = 0;
  for (size_t i = iterations.size() - n; i < iterations.size(); ++i) {
    sum += iterations[i].loss();
  }
  return sum / static_cast<double>(n);
}

absl::StatusOr<Json> RunReportToJson(const RunReport& report) {
  const v1::JobDetail& detail = report.detail;
  Json json{{"job", detail.summary().name()},
            {"state", JobStateName(detail.summary().state())},
            {"cause", detail.summary().cause()},
            {"plan", nullptr},
            {"predicted", nullptr},
            {"measured", nullptr},
            {"memory", nullptr}};
  if (detail.has_plan()) {
    GP_ASSIGN_OR_RETURN(const Plan plan, FromProto(detail.plan()));
    json["plan"] = PlanToJson(plan);
  }
  if (detail.has_prediction()) {
    GP_ASSIGN_OR_RETURN(const Prediction prediction, FromProto(detail.prediction()));
    json["predicted"] = PredictionToJson(prediction);
  }
  if (detail.has_measured() && detail.measured().iterations() > 0) {
    const v1::Measured& measured = detail.measured();
    json["measured"] = {{"iteration_s", Seconds(measured.iteration_ns())},
                        {"bubble_ratio", measured.bubble_ratio()},
                        {"tokens_per_s", measured.tokens_per_s()},
                        {"iterations", measured.iterations()}};
  }
  GP_ASSIGN_OR_RETURN(const std::vector<StageRanksMemory> memory, MemoryOfJob(detail));
  if (!memory.empty()) {
    json["memory"] = RankMemoryToJson(memory);
  }
  Json iterations = Json::array();
  for (const v1::IterationSummary& iteration : report.iterations) {
    Json row{{"iteration", iteration.iteration()}, {"loss", nullptr}, {"grad_norm", nullptr}};
    if (iteration.has_loss()) {
      row["loss"] = iteration.loss();
    }
    if (iteration.has_grad_norm()) {
      row["grad_norm"] = iteration.grad_norm();
    }
    row["duration_s"] = Seconds(iteration.duration_ns());
    iterations.push_back(std::move(row));
  }
  json["iterations"] = std::move(iterations);
  json["evaluations"] = Json::array();
  for (const v1::EvaluationSummary& evaluation : detail.evaluations()) {
    json["evaluations"].push_back(EvaluationToJson(evaluation));
  }
  if (!report.deviation.empty()) {
    json["largest_deviation"] = report.deviation;
  }
  if (report.start_error_p95_ns >= 0) {
    json["start_error_p95_s"] = Seconds(report.start_error_p95_ns);
  }
  if (report.stolen_share >= 0) {
    json["stolen_share"] = report.stolen_share;
  }
  json["artifacts"] = report.artifacts;
  return json;
}

std::string StolenNote(double stolen_share) {
  if (stolen_share < kNotableStolenShare) {
    return "";
  }
  return fmt::format(
      "{} of the processor time this host wanted went to other guests of its hypervisor; measured times may be "
      "too long",
      HumanPercent(stolen_share));
}

absl::StatusOr<std::string> ClosingSummary(const RunReport& report) {
  const v1::JobDetail& detail = report.detail;
  std::string text =
      fmt::format("job           {} {}", detail.summary().name(), JobStateName(detail.summary().state()));
  text += detail.summary().state() == v1::JOB_STATE_COMPLETED ? "\n" : fmt::format(": {}\n", detail.summary().cause());
  if (detail.has_plan()) {
    GP_ASSIGN_OR_RETURN(const Plan plan, FromProto(detail.plan()));
    text += fmt::format("plan          {}\n", PlanHeadline(plan));
  }
  if (detail.has_prediction() && detail.has_measured() && detail.measured().iterations() > 0) {
    const int64_t predicted_ns = detail.prediction().iteration_ns();
    const int64_t measured_ns = detail.measured().iteration_ns();
    text += fmt::format(
        "iteration     predicted {}, measured {} ({:+.1f} %, median of {})\n"
        "bubble        predicted {}, measured {}\n"
        "throughput    {} tokens/s\n",
        HumanDuration(predicted_ns), HumanDuration(measured_ns), Excess(measured_ns, predicted_ns) * 100,
        detail.measured().iterations(), HumanPercent(detail.prediction().bubble_ratio()),
        HumanPercent(detail.measured().bubble_ratio()),
        HumanCount(static_cast<int64_t>(detail.measured().tokens_per_s())));
  }
  if (report.start_error_p95_ns >= 0) {
    text += fmt::format("actions       95 % begin within {} of their predicted time\n",
                        HumanDuration(report.start_error_p95_ns));
  }
  if (const std::string stolen = StolenNote(report.stolen_share); !stolen.empty()) {
    text += fmt::format("stolen        {}\n", stolen);
  }
  if (!report.deviation.empty()) {
    text += fmt::format("deviation     {}\n", report.deviation);
  }
  if (!report.iterations.empty() && report.iterations.back().has_loss()) {
    text += fmt::format("loss          {:.4f} first, {:.4f} last", report.iterations.front().loss(),
                        report.iterations.back().loss());
    constexpr size_t kAveraged = 10;
    text +=
        report.iterations.size() > kAveraged
            ? fmt::format(", {:.4f} mean of the last {}\n", MeanOfLastLosses(report.iterations, kAveraged), kAveraged)
            : "\n";
  }
  text += ValidationText(detail);
  for (const auto& [kind, path] : report.artifacts) {
    text += fmt::format("{:<13} {}\n", kind, path);
  }
  return text;
}

std::string IterationLine(const v1::IterationSummary& iteration, int64_t iterations_total,
                          int64_t tokens_per_iteration) {
  const auto digits = fmt::formatted_size("{}", iterations_total);
  const double tokens_per_s =
      iteration.duration_ns() == 0 ? 0 : static_cast<double>(tokens_per_iteration) / Seconds(iteration.duration_ns());
  std::string text = fmt::format("iteration {:>{}}/{}", iteration.iteration() + 1, digits, iterations_total);
  if (iteration.has_loss()) {
    text += fmt::format("  loss {:.4f}", iteration.loss());
  }
  if (iteration.has_grad_norm()) {
    text += fmt::format("  grad norm {:.3f}", iteration.grad_norm());
  }
  return text + fmt::format("  {}  {} tokens/s", HumanDuration(iteration.duration_ns()),
                            HumanCount(static_cast<int64_t>(tokens_per_s)));
}

std::string EvaluationLine(const v1::EvaluationSummary& evaluation) {
  const std::string after =
      fmt::format("after {} {}", evaluation.iteration(), evaluation.iteration() == 1 ? "iteration" : "iterations");
  if (evaluation.incomplete()) {
    return fmt::format("validation {}: its report is lost", after);
  }
  return fmt::format("validation {}{}  {}", after,
                     evaluation.has_loss() ? fmt::format("  loss {:.4f}", evaluation.loss()) : "",
                     HumanDuration(evaluation.duration_ns()));
}

Json EvaluationToJson(const v1::EvaluationSummary& evaluation) {
  Json json{{"iterations", evaluation.iteration()}, {"loss", nullptr}, {"duration_s", nullptr}};
  if (evaluation.has_loss()) {
    json["loss"] = evaluation.loss();
  }
  if (!evaluation.incomplete()) {
    json["duration_s"] = Seconds(evaluation.duration_ns());
  }
  return json;
}

std::string ValidationText(const v1::JobDetail& detail) {
  std::vector<const v1::EvaluationSummary*> known;
  for (const v1::EvaluationSummary& evaluation : detail.evaluations()) {
    if (evaluation.has_loss()) {
      known.push_back(&evaluation);
    }
  }
  if (known.empty()) {
    return "";
  }
  const v1::EvaluationSummary* const lowest = std::ranges::min(known, {}, &v1::EvaluationSummary::loss);
  const auto shown = [](const v1::EvaluationSummary& each) {
    return fmt::format("{:.4f} after {}", each.loss(), each.iteration());
  };
  std::string text = fmt::format("validation    loss {} iterations", shown(*known.back()));
  if (known.size() > 1) {
    text += fmt::format("; first {}", shown(*known.front()));
    text += lowest == known.back() ? "" : fmt::format(", lowest {}", shown(*lowest));
  }
  return text + "\n";
}

std::string NoticeLine(const v1::JobNotice& notice) {
  return fmt::format("{:<10} {}",
                     notice.is_waiting()   ? "waiting"
                     : notice.is_warning() ? "warning"
                                           : "note",
                     notice.text());
}

absl::Status NotCompleted(const v1::JobSummary& summary) {
  const bool infeasible = summary.cause_code() == static_cast<int>(absl::StatusCode::kFailedPrecondition);
  return WithExitCode(
      absl::UnknownError(fmt::format("job {} {}: {}", summary.name(), JobStateName(summary.state()), summary.cause())),
      infeasible ? kExitInfeasible : kExitFailed);
}

}  // namespace geopipe
