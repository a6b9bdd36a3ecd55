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

using Json = nlohmann::ordered_json;

struct Request {
  std::string job;  // name
  v1::ApplyJobRequest message;
};

// An error of one of several jobs names it.
absl::Status Named(const absl::Status& status, const std::string& job, bool is_alone) {
  const bool is_named = std::string(status.message()).starts_with(fmt::format("job {} ", job));
  return is_alone || status.ok() || is_named
             ? status
             : WithExitCode(absl::Status(status.code(), fmt::format("job {}: {}", job, std::string(status.message()))),
                            ExitCodeOf(status));
}

// The requests of a file's jobs, which are all there when none of them is refused here.
absl::StatusOr<std::vector<Request>> ReadRequests(const std::string& job_path, const RunFlags& run_flags) {
  GP_ASSIGN_OR_RETURN(const RunOptions run, run_flags.Resolve());
  GP_ASSIGN_OR_RETURN(std::vector<JobSpec> jobs, ReadJobsFile(job_path, run.backend));
  const bool is_alone = jobs.size() == 1;
  std::vector<Request> requests;
  for (JobSpec& each : jobs) {
    Request& request = requests.emplace_back(Request{.job = each.name, .message = {}});
    const absl::StatusOr<JobSpec> job = RunFlags::WithSchedule(run, job_path, std::move(each));
    GP_RETURN_IF_ERROR(Named(job.status(), request.job, is_alone));
    GP_RETURN_IF_ERROR(Named(CheckInputsHere(*job, run.backend, job_path), request.job, is_alone));
    if (const std::optional<std::string> warning = ShardingWarning(*job); warning.has_value()) {
      PrintErr("warning: {}{}\n", is_alone ? "" : fmt::format("job {}: ", request.job), *warning);
    }
    request.message.set_manifest(WriteManifest(*job));
    *request.message.mutable_run() = ToProto(run);
  }
  return requests;
}

// Says which finished job has given its name to this one.
void SayReplaced(v1::JobState before, const v1::JobSummary& job) {
  PrintErr("note: this is run {} of job {}; the run before was {}{}\n", job.run(), job.name(), JobStateName(before),
           job.iterations_done() > 0
               ? fmt::format(", and this one goes on from it: it has its iterations up to {}", job.iterations_done())
               : fmt::format(", see geopipectl describe {} --run {}", job.name(), job.run() - 1));
}

Json ToJson(const v1::JobSummary& job) { return {{"name", job.name()}, {"state", JobStateName(job.state())}}; }

absl::StatusOr<int> ApplyOne(ControlClient& client, const Request& request, const CommonFlags& common) {
  const absl::StatusOr<v1::JobDetail> before = client.GetJob(request.job);
  if (!before.ok() && !absl::IsNotFound(before.status())) {
    return before.status();
  }
  GP_ASSIGN_OR_RETURN(const v1::JobSummary job, client.ApplyJob(request.message));
  if (before.ok()) {
    SayReplaced(before->summary().state(), job);
  }
  if (common.output != OutputFormat::kTable) {
    PrintDocument(ToJson(job), common.output);
    return kExitOk;
  }
  PrintOut("job {} {}\nfollow it with: geopipectl watch {} --server {}\n", job.name(), JobStateName(job.state()),
           job.name(), common.server);
  return kExitOk;
}

// Submits all in order. One that is refused holds up none after it, but that no coordinator answers does.
absl::StatusOr<int> ApplyAll(ControlClient& client, const std::vector<Request>& requests, const CommonFlags& common) {
  constexpr int64_t kMaxErrors = 10;
  const bool is_table = common.output == OutputFormat::kTable;
  std::map<std::string, v1::JobState> before;
  GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse listed, client.ListJobs());
  for (const v1::JobSummary& job : listed.jobs()) {
    before[job.name()] = job.state();
  }
  Json submitted = Json::array();
  int64_t refused = 0;
  absl::Status lost;
  for (size_t i = 0; i < requests.size() && lost.ok(); ++i) {
    const absl::StatusOr<v1::JobSummary> job = client.ApplyJob(requests[i].message);
    if (job.ok()) {
      if (const auto old = before.find(job->name()); old != before.end()) {
        SayReplaced(old->second, *job);
      }
      submitted.push_back(ToJson(*job));
      if (is_table) {
        PrintOut("job {} {}\n", job->name(), JobStateName(job->state()));
      }
    } else if (ExitCodeOf(job.status()) == kExitUnreachable) {
      lost = job.status();
    } else if (++refused <= kMaxErrors) {
      PrintErr("error: {}\n", std::string(Named(job.status(), requests[i].job, false).message()));
    }
  }
  if (!is_table) {
    PrintDocument(submitted, common.output);
  }
  if (!lost.ok()) {
    return WithExitCode(absl::Status(lost.code(), fmt::format("{} of {} jobs are submitted: {}", submitted.size(),
                                                              requests.size(), std::string(lost.message()))),
                        kExitUnreachable);
  }
  if (is_table && !submitted.empty()) {
    PrintOut("{} submitted; list them with: geopipectl get jobs --server {}\n", Counted(std::ssize(submitted), "job"),
             common.server);
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
  flags.Add(
      "replace", &replace,
      "Begin anew under the name of a finished job, which stays as an earlier run (get jobs --all); without it this "
      "one is refused.");
  run.Register(flags);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (job_path.empty()) {
    return absl::InvalidArgumentError("no job file: name one with -f JOB.yaml");
  }
  GP_ASSIGN_OR_RETURN(std::vector<Request> requests, ReadRequests(job_path, run));
  for (Request& request : requests) {
    request.message.set_replace(replace);
  }
  ControlClient client(common.server, common.timeout_ns);
  return requests.size() == 1 ? ApplyOne(client, requests.front(), common) : ApplyAll(client, requests, common);
}

}  // namespace geopipe
