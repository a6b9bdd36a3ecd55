// geopipectl cancel: stops a job for good.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"

namespace geopipe {

absl::StatusOr<int> RunCancel(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string job;
  std::string reason = "asked for by geopipectl cancel";
  FlagSet flags("geopipectl cancel", "Stops a job for good; its state becomes CANCELLED.");
  flags.AddPositional("JOB", &job, true, "Name of the job.");
  flags.Add("reason", &reason, "TEXT", "Shown as the cause in describe.");
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::JobSummary summary, client.CancelJob(job, reason));
  if (common.output != OutputFormat::kTable) {
    PrintDocument({{"name", summary.name()}, {"state", JobStateName(summary.state())}, {"cause", summary.cause()}},
                  common.output);
    return kExitOk;
  }
  fmt::print("job {} {}\n", summary.name(), JobStateName(summary.state()));
  return kExitOk;
}

}  // namespace geopipe
