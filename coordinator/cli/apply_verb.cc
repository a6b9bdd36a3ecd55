// geopipectl apply: submits a job.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/job_inputs.h"
#include "coordinator/cli/run_flags.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/report/plan_warnings.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/output.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

absl::StatusOr<v1::ApplyJobRequest> ReadRequest(const std::string& job_path, const RunFlags& run_flags) {
  GP_ASSIGN_OR_RETURN(const RunOptions run, run_flags.Resolve());
  GP_ASSIGN_OR_RETURN(JobSpec job, ReadJobFile(job_path, run.backend));
  GP_ASSIGN_OR_RETURN(job, RunFlags::WithSchedule(run, job_path, std::move(job)));
  GP_RETURN_IF_ERROR(CheckInputsHere(job, job_path));
  if (const std::optional<std::string> warning = ShardingWarning(job); warning.has_value()) {
    PrintErr("warning: {}\n", *warning);
  }
  v1::ApplyJobRequest request;
  request.set_manifest(WriteManifest(job));
  *request.mutable_run() = ToProto(run);
  return request;
}

}  // namespace

absl::StatusOr<int> RunApply(std::span<const std::string> arguments) {
  CommonFlags common;
  RunFlags run;
  std::string job_path;
  bool replace = false;
  FlagSet flags("geopipectl apply", "Submits a job to the coordinator; it is durable when this returns.");
  flags.AddPath("file,f", &job_path, "JOB.yaml", "Job file ('geopipectl explain job').");
  flags.Add("replace", &replace,
            "Drop a finished job of this name and its history; without it such a job is kept and this one refused.");
  run.Register(flags);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (job_path.empty()) {
    return absl::InvalidArgumentError("no job file: name one with -f JOB.yaml");
  }
  GP_ASSIGN_OR_RETURN(v1::ApplyJobRequest request, ReadRequest(job_path, run));
  request.set_replace(replace);
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse before, client.ListJobs());
  GP_ASSIGN_OR_RETURN(const v1::JobSummary job, client.ApplyJob(request));
  for (const v1::JobSummary& old : before.jobs()) {
    if (old.name() == job.name()) {
      PrintErr("note: this takes the place of the job {} that was {}, {}\n", old.name(), JobStateName(old.state()),
               job.iterations_done() > 0
                   ? fmt::format("and goes on from it: its iterations up to {} are kept", job.iterations_done())
                   : "and of its history");
    }
  }
  if (common.output != OutputFormat::kTable) {
    PrintDocument({{"name", job.name()}, {"state", JobStateName(job.state())}}, common.output);
    return kExitOk;
  }
  PrintOut("job {} {}\nfollow it with: geopipectl watch {} --server {}\n", job.name(), JobStateName(job.state()),
           job.name(), common.server);
  return kExitOk;
}

}  // namespace geopipe
