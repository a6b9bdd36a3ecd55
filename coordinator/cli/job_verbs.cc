// geopipectl cancel, pause and resume: verbs that take names of jobs.
#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/output.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

struct JobAnswer {
  v1::JobSummary job;
  bool already = false;
};

// Flags of all of them; each verb has some.
struct JobFlags {
  std::string reason;
  bool checkpoint = false;
  std::string from = {};
};

struct JobVerb {
  const char* name;
  const char* summary;
  bool ends = false;     // takes --reason and --checkpoint
  bool chooses = false;  // takes --from
  absl::StatusOr<JobAnswer> (*call)(ControlClient& client, const std::string& job, const JobFlags& flags);
};

template <class Response>
absl::StatusOr<JobAnswer> AnswerOf(absl::StatusOr<Response> response) {
  GP_RETURN_IF_ERROR(response.status());
  return JobAnswer{.job = std::move(*response->mutable_job()), .already = response->already()};
}

absl::StatusOr<v1::ResumeFrom> FromOf(const std::string& from) {
  if (from.empty()) {
    return v1::RESUME_FROM_UNSPECIFIED;
  }
  if (from == "newest" || from == "store") {
    return from == "store" ? v1::RESUME_FROM_STORE : v1::RESUME_FROM_NEWEST;
  }
  return absl::InvalidArgumentError(fmt::format("--from {}: it is newest or store", from));
}

bool IsOver(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

// Waits until the job that is to end with a checkpoint has ended. Aborted says why the job stays.
absl::StatusOr<JobAnswer> AwaitEnd(const CommonFlags& common, const std::string& name) {
  ControlClient client(common.server, common.timeout_ns);
  std::string stays;
  const absl::Status watched =
      client.WatchJob(name, std::numeric_limits<int64_t>::max(), [&](const v1::WatchJobResponse& event) {
        stays = event.has_notice() && event.notice().stays() ? event.notice().text() : "";
        return stays.empty();
      });
  if (!stays.empty()) {
    return WithExitCode(absl::AbortedError(fmt::format("job {}: {}", name, stays)), kExitFailed);
  }
  GP_RETURN_IF_ERROR(watched);
  GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(name));
  return JobAnswer{.job = detail.summary()};
}

// Says of a job that it already is, or is about to become, what it was asked to become.
std::string AlreadyWords(std::string_view verb, const v1::JobSummary& job) {
  const bool paused = job.state() == v1::JOB_STATE_PAUSED;
  const std::string_view words = verb == "cancel"  ? "cancelled"
                                 : verb == "pause" ? (paused ? "paused" : "about to pause")
                                 : paused          ? "about to go on"
                                                   : "running";
  return fmt::format("is already {}: {}", words, job.cause());
}

// Asks for every job, whatever becomes of the others: each error but the last is printed at once, and the last ends the
// verb.
absl::StatusOr<int> RunJobVerb(const JobVerb& verb, std::span<const std::string> arguments) {
  CommonFlags common;
  std::vector<std::string> jobs;
  JobFlags given{.reason = fmt::format("asked for by geopipectl {}", verb.name)};
  FlagSet flags(fmt::format("geopipectl {}", verb.name), verb.summary);
  flags.AddPositionals("JOB", &jobs, "Names of jobs ('geopipectl get jobs').");
  if (verb.ends) {
    flags.Add("reason", &given.reason, "TEXT", "Shown as the cause in describe.");
    flags.Add("checkpoint", &given.checkpoint,
              "First write a checkpoint behind the iteration under way; waits until it is complete.");
  }
  if (verb.chooses) {
    flags.Add("from", &given.from, "newest|store",
              "Of a job that is paused because the job store was older than its run: from the newest state that its "
              "workers hold, or from the newest checkpoint in the store.");
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
  absl::Status failed;
  for (const std::string& job : jobs) {
    absl::StatusOr<JobAnswer> answer = verb.call(client, job, given);
    if (answer.ok() && given.checkpoint && !IsOver(answer->job.state())) {
      answer = AwaitEnd(common, job);
    }
    if (!answer.ok()) {
      if (!failed.ok()) {
        PrintErr("error: {}\n", Printable(std::string(failed.message())));
      }
      failed = answer.status();
      continue;
    }
    const v1::JobSummary& summary = answer->job;
    done.push_back({{"name", summary.name()},
                    {"state", JobStateName(summary.state())},
                    {"cause", summary.cause()},
                    {"already", answer->already}});
    if (common.output == OutputFormat::kTable) {
      PrintOut("job {} {}\n", summary.name(),
               answer->already ? AlreadyWords(verb.name, summary)
                               : fmt::format("{}: {}", JobStateName(summary.state()), summary.cause()));
    }
  }
  if (common.output != OutputFormat::kTable && !done.empty()) {
    PrintDocument(jobs.size() == 1 ? done.front() : done, common.output);
  }
  (void)FlushOutput();
  GP_RETURN_IF_ERROR(failed);
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> RunCancel(std::span<const std::string> arguments) {
  return RunJobVerb(
      {.name = "cancel",
       .summary = "Stops jobs for good; their state becomes CANCELLED.",
       .ends = true,
       .call = [](ControlClient& client, const std::string& job,
                  const JobFlags& given) { return AnswerOf(client.CancelJob(job, given.reason, given.checkpoint)); }},
      arguments);
}

absl::StatusOr<int> RunPause(std::span<const std::string> arguments) {
  return RunJobVerb({.name = "pause",
                     .summary = "Stops jobs after the current iteration. Their workers keep their state and their "
                                "devices; 'geopipectl resume' lets them go on.",
                     .call = [](ControlClient& client, const std::string& job,
                                const JobFlags&) { return AnswerOf(client.PauseJob(job)); }},
                    arguments);
}

absl::StatusOr<int> RunResume(std::span<const std::string> arguments) {
  return RunJobVerb(
      {.name = "resume",
       .summary = "Lets paused jobs go on where they stopped.",
       .chooses = true,
       .call = [](ControlClient& client, const std::string& job, const JobFlags& given) -> absl::StatusOr<JobAnswer> {
         GP_ASSIGN_OR_RETURN(const v1::ResumeFrom from, FromOf(given.from));
         return AnswerOf(client.ResumeJob(job, from));
       }},
      arguments);
}

}  // namespace geopipe
