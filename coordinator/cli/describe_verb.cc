// geopipectl describe: everything about one job.
#include <optional>
#include <string>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/job_description.h"
#include "coordinator/cli/trace_data.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {

absl::StatusOr<int> RunDescribe(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string name;
  std::optional<int64_t> asked_run;
  FlagSet flags("geopipectl describe",
                "Shows everything about one job: plan, prediction, measurement, history, job file.");
  flags.AddPositional("JOB", &name, true, "Name of the job ('geopipectl get jobs').");
  AddRunFlag(flags, &asked_run);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  GP_ASSIGN_OR_RETURN(const int64_t run, RunOf(asked_run));
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(name, run));
  GP_ASSIGN_OR_RETURN(const std::optional<ComparedRun> compared, CompareRun(client, name, run));
  if (common.output == OutputFormat::kTable) {
    GP_ASSIGN_OR_RETURN(const std::string text,
                        OrFailed(DescriptionText(detail, compared, {.shows_run = run > 0, .columns = TextColumns()})));
    PrintOut("{}", text);
    return kExitOk;
  }
  GP_ASSIGN_OR_RETURN(const Json json, OrFailed(DescriptionToJson(detail, compared)));
  PrintDocument(json, common.output);
  return kExitOk;
}

}  // namespace geopipe
