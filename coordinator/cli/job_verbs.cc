// geopipectl cancel, pause and resume: verbs that take names of jobs.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/output.h"

namespace geopipe {
namespace {

struct JobVerb {
  const char* name;
  const char* summary;
  bool has_reason = false;
  absl::StatusOr<v1::JobSummary> (*call)(ControlClient& client, const std::string& job, const std::string& reason);
};

absl::StatusOr<int> RunJobVerb(const JobVerb& verb, std::span<const std::string> arguments) {
  CommonFlags common;
  std::vector<std::string> jobs;
  std::string reason = fmt::format("asked for by geopipectl {}", verb.name);
  FlagSet flags(fmt::format("geopipectl {}", verb.name), verb.summary);
  flags.AddPositionals("JOB", &jobs, "Names of jobs ('geopipectl get jobs').");
  if (verb.has_reason) {
    flags.Add("reason", &reason, "TEXT", "Shown as the cause in describe.");
  }
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (jobs.empty()) {
    return absl::InvalidArgumentError(fmt::format("no job: name one or more, geopipectl {} JOB", verb.name));
  }
  ControlClient client(common.server, common.timeout_ns);
  nlohmann::ordered_json done = nlohmann::ordered_json::array();
  absl::Status failed;  // the first; the other jobs are asked all the same
  for (const std::string& job : jobs) {
    const absl::StatusOr<v1::JobSummary> summary = verb.call(client, job, reason);
    failed.Update(summary.status());
    if (!summary.ok()) {
      continue;
    }
    done.push_back({{"name", summary->name()}, {"state", JobStateName(summary->state())}, {"cause", summary->cause()}});
    if (common.output == OutputFormat::kTable) {
      PrintOut("job {} {}: {}\n", summary->name(), JobStateName(summary->state()), summary->cause());
    }
  }
  if (common.output != OutputFormat::kTable && !done.empty()) {
    PrintDocument(jobs.size() == 1 ? done.front() : done, common.output);
  }
  GP_RETURN_IF_ERROR(failed);
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> RunCancel(std::span<const std::string> arguments) {
  return RunJobVerb({.name = "cancel",
                     .summary = "Stops jobs for good; their state becomes CANCELLED.",
                     .has_reason = true,
                     .call = [](ControlClient& client, const std::string& job,
                                const std::string& reason) { return client.CancelJob(job, reason); }},
                    arguments);
}

absl::StatusOr<int> RunPause(std::span<const std::string> arguments) {
  return RunJobVerb({.name = "pause",
                     .summary = "Stops jobs after the current iteration. Their workers keep their state and their "
                                "devices; 'geopipectl resume' lets them go on.",
                     .call = [](ControlClient& client, const std::string& job,
                                const std::string& /*reason*/) { return client.PauseJob(job); }},
                    arguments);
}

absl::StatusOr<int> RunResume(std::span<const std::string> arguments) {
  return RunJobVerb({.name = "resume",
                     .summary = "Lets paused jobs go on where they stopped.",
                     .call = [](ControlClient& client, const std::string& job,
                                const std::string& /*reason*/) { return client.ResumeJob(job); }},
                    arguments);
}

}  // namespace geopipe
