// geopipectl apply: submits the jobs of a file.
#include <fmt/format.h>

#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/files/job_inputs.h"
#include "coordinator/cli/run_flags.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/report/plan_warnings.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/output.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

// The requests of a file's jobs, which are all there when none of them is refused here.
absl::StatusOr<std::vector<v1::ApplyJobRequest>> ReadRequests(const std::string& job_path, const RunFlags& run_flags) {
  GP_ASSIGN_OR_RETURN(const RunOptions run, run_flags.Resolve());
  GP_ASSIGN_OR_RETURN(std::vector<JobSpec> jobs, ReadJobsFile(job_path, run.backend));
  std::vector<v1::ApplyJobRequest> requests;
  for (JobSpec& each : jobs) {
    GP_ASSIGN_OR_RETURN(const JobSpec job, RunFlags::WithSchedule(run, job_path, std::move(each)));
    GP_RETURN_IF_ERROR(CheckInputsHere(job, job_path));
    if (const std::optional<std::string> warning = ShardingWarning(job); warning.has_value()) {
      PrintErr("warning: {}{}\n", jobs.size() > 1 ? fmt::format("job {}: ", job.name) : "", *warning);
    }
    v1::ApplyJobRequest& request = requests.emplace_back();
    request.set_manifest(WriteManifest(job));
    *request.mutable_run() = ToProto(run);
  }
  return requests;
}

using Json = nlohmann::ordered_json;
using JobsByName = std::map<std::string, v1::JobSummary>;

absl::StatusOr<JobsByName> JobsOf(ControlClient& client) {
  GP_ASSIGN_OR_RETURN(v1::ListJobsResponse response, client.ListJobs());
  JobsByName jobs;
  for (v1::JobSummary& job : *response.mutable_jobs()) {
    jobs[job.name()] = std::move(job);
  }
  return jobs;
}

void SayReplaced(const JobsByName& before, const std::string& name) {
  const auto old = before.find(name);
  if (old == before.end()) {
    return;
  }
  const int64_t kept = old->second.iterations_done();
  PrintErr(
      "note: this takes the place of the job {} that was {}, {}\n", name, JobStateName(old->second.state()),
      kept > 0 ? fmt::format("and goes on from it: its iterations up to {} are kept", kept) : "and of its history");
}

Json ToJson(const v1::JobSummary& job) { return {{"name", job.name()}, {"state", JobStateName(job.state())}}; }

absl::StatusOr<int> ApplyOne(ControlClient& client, const v1::ApplyJobRequest& request, const CommonFlags& common) {
  GP_ASSIGN_OR_RETURN(const JobsByName before, JobsOf(client));
  GP_ASSIGN_OR_RETURN(const v1::JobSummary job, client.ApplyJob(request));
  SayReplaced(before, job.name());
  if (common.output != OutputFormat::kTable) {
    PrintDocument(ToJson(job), common.output);
    return kExitOk;
  }
  PrintOut("job {} {}\nfollow it with: geopipectl watch {} --server {}\n", job.name(), JobStateName(job.state()),
           job.name(), common.server);
  return kExitOk;
}

// Submits all in order. One that is refused holds up none after it, but that no coordinator answers does.
absl::StatusOr<int> ApplyAll(ControlClient& client, const std::vector<v1::ApplyJobRequest>& requests,
                             const CommonFlags& common) {
  constexpr int64_t kMaxErrors = 10;
  const bool is_table = common.output == OutputFormat::kTable;
  GP_ASSIGN_OR_RETURN(const JobsByName before, JobsOf(client));
  Json submitted = Json::array();
  int64_t refused = 0;
  for (const v1::ApplyJobRequest& request : requests) {
    const absl::StatusOr<v1::JobSummary> job = client.ApplyJob(request);
    if (job.ok()) {
      SayReplaced(before, job->name());
      submitted.push_back(ToJson(*job));
      if (is_table) {
        PrintOut("job {} {}\n", job->name(), JobStateName(job->state()));
      }
      continue;
    }
    if (ExitCodeOf(job.status()) == kExitUnreachable) {
      return WithExitCode(
          absl::Status(job.status().code(), fmt::format("{} of {} jobs are submitted: {}", submitted.size(),
                                                        requests.size(), std::string(job.status().message()))),
          kExitUnreachable);
    }
    if (++refused <= kMaxErrors) {
      PrintErr("error: {}\n", std::string(job.status().message()));
    }
  }
  if (is_table) {
    PrintOut("{} submitted; list them with: geopipectl get jobs --server {}\n", Counted(std::ssize(submitted), "job"),
             common.server);
  } else {
    PrintDocument(submitted, common.output);
  }
  if (refused > 0) {
    PrintErr("error: {} of {} jobs were refused{}\n", refused, requests.size(),
             refused > kMaxErrors ? fmt::format(", the first {} for the reasons above", kMaxErrors) : "");
  }
  return refused > 0 ? kExitFailed : kExitOk;
}

}  // namespace

absl::StatusOr<int> RunApply(std::span<const std::string> arguments) {
  CommonFlags common;
  RunFlags run;
  std::string job_path;
  bool replace = false;
  FlagSet flags("geopipectl apply",
                "Submits a job, or all of a file, to the coordinator; they are durable when this returns.");
  flags.AddPath("file,f", &job_path, "JOB.yaml",
                "Job file ('geopipectl explain job'); lines of --- part several jobs.");
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
  GP_ASSIGN_OR_RETURN(std::vector<v1::ApplyJobRequest> requests, ReadRequests(job_path, run));
  for (v1::ApplyJobRequest& request : requests) {
    request.set_replace(replace);
  }
  ControlClient client(common.server, common.timeout_ns);
  return requests.size() == 1 ? ApplyOne(client, requests.front(), common) : ApplyAll(client, requests, common);
}

}  // namespace geopipe
