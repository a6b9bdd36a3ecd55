// geopipectl cancel: stops jobs for good.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"

namespace geopipe {

absl::StatusOr<int> RunCancel(std::span<const std::string> arguments) {
  CommonFlags common;
  std::vector<std::string> jobs;
  std::string reason = "asked for by geopipectl cancel";
  FlagSet flags("geopipectl cancel", "Stops jobs for good; their state becomes CANCELLED.");
  flags.AddPositionals("JOB", &jobs, "Names of jobs ('geopipectl get jobs').");
  flags.Add("reason", &reason, "TEXT", "Shown as the cause in describe.");
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (jobs.empty()) {
    return absl::InvalidArgumentError("no job: name one or more, geopipectl cancel JOB");
  }
  ControlClient client(common.server, common.timeout_ns);
  nlohmann::ordered_json cancelled = nlohmann::ordered_json::array();
  absl::Status failed;  // the first; the other jobs are cancelled all the same
  for (const std::string& job : jobs) {
    const absl::StatusOr<v1::JobSummary> summary = client.CancelJob(job, reason);
    failed.Update(summary.status());
    if (!summary.ok()) {
      continue;
    }
    cancelled.push_back(
        {{"name", summary->name()}, {"state", JobStateName(summary->state())}, {"cause", summary->cause()}});
    if (common.output == OutputFormat::kTable) {
      fmt::print("job {} {}\n", summary->name(), JobStateName(summary->state()));
    }
  }
  if (common.output != OutputFormat::kTable && !cancelled.empty()) {
    PrintDocument(jobs.size() == 1 ? cancelled.front() : cancelled, common.output);
  }
  GP_RETURN_IF_ERROR(failed);
  return kExitOk;
}

}  // namespace geopipe
