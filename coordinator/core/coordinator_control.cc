// Carries out what people want of a job: to pause and resume it, to write a checkpoint of it, and to cancel it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::StatusOr<v1::CancelJobResponse> Coordinator::On(Now now, CancelJob& event) {
  GP_ASSIGN_OR_RETURN(Job* const job, jobs_.Named(event.name));
  v1::CancelJobResponse response;
  if (job->state() == v1::JOB_STATE_CANCELLED) {
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    return response;
  }
  if (IsFinal(job->state())) {
    return absl::FailedPreconditionError(
        fmt::format("job {} is already {}: {}", event.name, JobStateName(job->state()), job->detail.summary().cause()));
  }
  if (event.checkpoint && job->spec.checkpoint.path.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has no checkpoint.path to write a last checkpoint to; cancel it without one", event.name));
  }
  const std::string reason = event.reason.empty() ? "cancelled by request" : event.reason;
  if (event.checkpoint) {
    job->closing = reason;
    outbox_.Emit(PersistRecord{job->name(), RecordOf(*job)});
    outbox_.Log(LogLevel::kInfo, job->name(), "it is to end with a checkpoint: {}", reason);
    Drive(now, *job);
  } else {
    job->waiting_for.clear();
    Finish(now, *job, v1::JOB_STATE_CANCELLED, reason);
  }
  *response.mutable_job() = SummaryOf(*job);
  return response;
}

absl::StatusOr<v1::PauseJobResponse> Coordinator::On(Now now, PauseJob& event) {
  GP_ASSIGN_OR_RETURN(Job* const job, jobs_.Named(event.name));
  if (job->run != nullptr) {  // what was heard before comes first: it may end the job
    Listen(now, *job->run);
    Drive(now, *job);
  }
  v1::PauseJobResponse response;
  if (job->run != nullptr && job->run->life().wants.pause) {
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    return response;
  }
  if (job->state() != v1::JOB_STATE_RUNNING && job->state() != v1::JOB_STATE_PAUSED) {
    return absl::FailedPreconditionError(
        fmt::format("job {} is {}; only a job that is RUNNING can be paused", event.name, JobStateName(job->state())));
  }
  job->run->Pause();
  outbox_.Emit(PersistRecord{job->name(), RecordOf(*job)});
  outbox_.Log(LogLevel::kInfo, job->name(), "a pause is wanted");
  Drive(now, *job);
  *response.mutable_job() = SummaryOf(*job);
  return response;
}

absl::StatusOr<v1::ResumeJobResponse> Coordinator::On(Now now, ResumeJob& event) {
  GP_ASSIGN_OR_RETURN(Job* const job, jobs_.Named(event.name));
  v1::ResumeJobResponse response;
  if (job->run == nullptr && event.from == v1::RESUME_FROM_STORE && unknown_.StopOf(event.name) > 0) {
    job->last_stored_worker = options_.incarnation;  // those that are still to be heard of are given up as well
    outbox_.Log(LogLevel::kWarning, event.name, "its run is given up, which this job store does not know");
    outbox_.AskToSchedule();
    *response.mutable_job() = SummaryOf(*job);
    return response;
  }
  if (job->run == nullptr || !job->run->life().wants.pause) {
    const bool goes_on = job->state() == v1::JOB_STATE_PAUSED || job->state() == v1::JOB_STATE_DEPLOYING ||
                         job->state() == v1::JOB_STATE_RUNNING;
    if (!goes_on) {
      return absl::FailedPreconditionError(
          fmt::format("job {} is {}, not paused", event.name, JobStateName(job->state())));
    }
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    return response;
  }
  if (job->run->life().outrun && event.from == v1::RESUME_FROM_UNSPECIFIED) {
    return absl::FailedPreconditionError(
        fmt::format("job {} is {}; choose one", event.name, job->detail.summary().cause()));
  }
  job->closing.clear();
  Listen(now, *job->run);
  job->run->Resume(std::move(event.secret), event.from == v1::RESUME_FROM_STORE);
  const int transitions = job->detail.transitions_size();
  Drive(now, *job);
  if (job->detail.transitions_size() == transitions) {  // else it is stored with the state: an epoch without it would
    outbox_.Emit(PersistRecord{job->name(), RecordOf(*job)});  // be waited for
  }
  *response.mutable_job() = SummaryOf(*job);
  return response;
}

absl::StatusOr<v1::CheckpointJobResponse> Coordinator::On(Now now, CheckpointJob& event) {
  GP_ASSIGN_OR_RETURN(Job* const job, jobs_.Named(event.name));
  Reaction reaction;
  const absl::StatusOr<int64_t> iteration =
      job->run == nullptr ? absl::FailedPreconditionError(
                                fmt::format("job {} is {}; a checkpoint can be asked for while it is RUNNING or PAUSED",
                                            event.name, JobStateName(job->state())))
                          : job->run->Checkpoint(reaction);
  if (!iteration.ok()) {
    return iteration.status();
  }
  job->detail.clear_checkpoint_trouble();  // trouble reported later may concern this one
  React(now, *job, std::move(reaction));
  v1::CheckpointJobResponse response;
  *response.mutable_job() = SummaryOf(*job);
  response.set_iteration(*iteration);
  return response;
}

}  // namespace geopipe
