// geopipectl watch: follows a job until it is in a final state.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/run_report.h"
#include "coordinator/cli/trace_data.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/output.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

Json ToJson(const v1::WatchJobResponse& event) {
  if (event.has_transition()) {
    return {{"state", JobStateName(event.transition().state())},
            {"unix_time_ns", event.transition().unix_time_ns()},
            {"cause", event.transition().cause()}};
  }
  if (event.has_evaluation()) {
    return {{"evaluation", EvaluationToJson(event.evaluation())}};
  }
  if (event.has_notice()) {
    return {{"notice", event.notice().text()}, {"warning", event.notice().is_warning()}};
  }
  Json json{{"iteration", event.iteration().iteration()}};
  if (event.iteration().has_loss()) {
    json["loss"] = event.iteration().loss();
  }
  if (event.iteration().has_grad_norm()) {
    json["grad_norm"] = event.iteration().grad_norm();
  }
  json["duration_s"] = static_cast<double>(event.iteration().duration_ns()) / 1e9;
  return json;
}

// Prints the largest deviation of measurement from plan whenever another one takes its place.
class DeviationTeller {
 public:
  DeviationTeller(ControlClient& client, std::string job, int64_t run, bool as_json)
      : client_(client), job_(std::move(job)), run_(run), as_json_(as_json) {}

  void OnIteration(int64_t iteration) {
    if (iteration % kEvery != kEvery - 1) {
      return;
    }
    const absl::StatusOr<std::optional<ComparedRun>> compared = CompareRun(client_, job_, run_);
    if (!compared.ok() || !compared->has_value()) {
      return;  // there is no timeline yet, or the watch itself will say what is wrong
    }
    const PlanComparison& comparison = (*compared)->comparison;
    const std::optional<Key> key = KeyOf(comparison);
    if (key == told_) {
      return;
    }
    told_ = key;
    const std::string sentence = LargestDeviation(comparison, (*compared)->data.plan);
    if (as_json_) {
      PrintOut("{}\n", nlohmann::ordered_json{{"deviation", sentence}}.dump());
    } else {
      PrintOut("{:<10} {}\n", "deviation", sentence);
    }
  }

 private:
  static constexpr int64_t kEvery = 5;
  // The deviation without its amount, which changes all the time.
  using Key = std::tuple<Deviation::Kind, int32_t, bool>;

  static std::optional<Key> KeyOf(const PlanComparison& comparison) {
    if (comparison.deviations.empty()) {
      return std::nullopt;
    }
    const Deviation& largest = comparison.deviations.front();
    return Key{largest.kind, largest.index, largest.measured_ns > largest.predicted_ns};
  }

  ControlClient& client_;
  const std::string job_;
  const int64_t run_;
  const bool as_json_;
  std::optional<Key> told_;
};

std::string LineOf(const v1::WatchJobResponse& event, const v1::JobDetail& detail, const JobSpec& job) {
  if (event.has_transition()) {
    return fmt::format("{:<10} {}", JobStateName(event.transition().state()), event.transition().cause());
  }
  if (event.has_evaluation()) {
    return EvaluationLine(event.evaluation());
  }
  if (event.has_notice()) {
    return NoticeLine(event.notice());
  }
  return IterationLine(event.iteration(), detail.summary().iterations_total(), job.training.tokens_per_iteration);
}

// The job's end as the watch has told it, where the coordinator does not answer any more.
v1::JobSummary EndOf(ControlClient& client, const std::string& name, int64_t run, const v1::JobTransition& last) {
  if (const absl::StatusOr<v1::JobDetail> ended = client.GetJob(name, run); ended.ok()) {
    return ended->summary();
  }
  v1::JobSummary summary;
  summary.set_name(name);
  summary.set_state(last.state());
  summary.set_cause(last.cause());
  return summary;
}

}  // namespace

absl::StatusOr<int> RunWatch(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string name;
  int64_t from_iteration = 0;
  std::optional<int64_t> asked_run;
  FlagSet flags(
      "geopipectl watch",
      "Follows a job until it has ended; exits 0 when it has completed. A coordinator that does not answer any "
      "more is dialled again, for as long as --timeout says if it is given, and else until Ctrl-C.");
  flags.AddPositional("JOB", &name, true, "Name of the job.");
  flags.Add("from", &from_iteration, "N", "First iteration to show.");
  AddRunFlag(flags, &asked_run);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (from_iteration < 0) {
    return absl::InvalidArgumentError(fmt::format("--from {}: iterations are counted from 0", from_iteration));
  }
  GP_ASSIGN_OR_RETURN(const int64_t run, RunOf(asked_run));
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(name, run));
  GP_ASSIGN_OR_RETURN(const JobSpec job, OrFailed(ParseManifest(detail.manifest())));
  v1::JobTransition last;
  ControlClient asking(common.server, common.timeout_ns);
  DeviationTeller deviation(asking, name, run, common.output == OutputFormat::kJson);
  const ControlClient::Redial redial{.give_up_after_ns = flags.given("timeout") ? common.timeout_ns : 0,
                                     .on_lost =
                                         [&](const absl::Status& why) {
                                           PrintErr("{}; the watch goes on when it answers again\n",
                                                    std::string(why.message()));
                                         },
                                     .on_back = [] { PrintErr("the coordinator answers again\n"); }};
  const absl::Status status = client.WatchJob(
      name, from_iteration,
      [&](const v1::WatchJobResponse& event) {
        if (event.has_transition()) {
          last = event.transition();
        }
        PrintOut("{}\n", common.output == OutputFormat::kJson ? ToJson(event).dump() : LineOf(event, detail, job));
        if (event.has_iteration()) {
          deviation.OnIteration(event.iteration().iteration());
        }
        return FlushOutput().ok();
      },
      &redial, run);
  if (!FlushOutput().ok()) {
    return kExitFailed;  // nobody sees what goes on; main says why
  }
  GP_RETURN_IF_ERROR(status);
  return last.state() == v1::JOB_STATE_COMPLETED ? absl::StatusOr<int>(kExitOk)
                                                 : NotCompleted(EndOf(client, name, run, last));
}

}  // namespace geopipe
