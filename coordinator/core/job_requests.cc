#include "coordinator/core/job_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/planning.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

std::string ReplaceSentence(const Job& old, int64_t last) {
  const std::string from =
      last == 0 ? "" : fmt::format("go on from its checkpoint of iteration {} with --resume, ", last);
  return fmt::format(
      "job {} is {} with {} iterations done, whose name this would take: {}begin anew with --replace, which {}, or "
      "give "
      "this one another name",
      old.name(), JobStateName(old.state()), old.iterations().next(), from,
      old.is_damaged ? "drops that one" : fmt::format("keeps that one as run {}", old.number()));
}

// Tells whether the job may take the place of this finished one, and below which iteration it has that one's history.
absl::StatusOr<int64_t> MayReplace(const Job& old, const ApplyJob& event) {
  const absl::StatusOr<JobSpec> spec = ParseManifest(old.detail.manifest());
  const std::string& path = event.job.checkpoint.path;
  const bool same_path = spec.ok() && !path.empty() && spec->checkpoint.path == path;
  const int64_t last = LastCheckpoint(old.detail);
  if (same_path && last > 0 && event.run.resume) {
    if (const int64_t end = EndIteration(event.job, event.run); last >= end) {
      return absl::FailedPreconditionError(
          fmt::format("job {} is {} and has a checkpoint of iteration {}, and training ends at iteration {}: ask for "
                      "more iterations to go on, or give this one another name",
                      old.name(), JobStateName(old.state()), last, end));
    }
    return last;
  }
  if (old.iterations().next() == 0 && last == 0) {
    return 0;  // it has no history
  }
  if (!event.replace) {
    return absl::AlreadyExistsError(ReplaceSentence(old, same_path ? last : 0));
  }
  if (same_path && last > 0) {
    return absl::FailedPreconditionError(fmt::format(
        "checkpoint.path {} has checkpoints of job {}, the newest of iteration {}, and a job that begins anew does not "
        "write among them: go on from it with --resume, or give this one another checkpoint.path",
        path, old.name(), last));
  }
  return 0;
}

template <class Timelines>
v1::GetTraceResponse TraceOf(const Job& job, const Timelines& timelines) {
  v1::GetTraceResponse response;
  *response.mutable_job() = DetailOf(job);
  response.mutable_iterations()->Assign(timelines.begin(), timelines.end());
  return response;
}

std::string_view WhyNoTimelines(const Job& job) {
  const bool is_over = IsFinal(job.state());
  if (job.iterations().next() == 0) {
    return is_over ? "it ended before its first iteration" : "its first iteration is not complete";
  }
  return is_over ? "none was kept of its iterations: its ranks reported none that was whole, or it ran under a version "
                   "that kept none"
                 : "no iteration of its plan has been reported whole yet";
}

}  // namespace

absl::StatusOr<v1::ApplyJobResponse> JobRequests::On(Now now, ApplyJob& event) {
  GP_RETURN_IF_ERROR(CheckRunnable(event.job, event.run));
  GP_RETURN_IF_ERROR(CheckBackend(event.job, event.run, placement_.Offers()));
  const std::string name = event.job.name;
  Job* const old = jobs_.Find(name);
  if (old != nullptr && !IsFinal(old->state())) {
    return absl::AlreadyExistsError(
        fmt::format("job {} is {}; cancel it first, or give this one another name", name, JobStateName(old->state())));
  }
  int64_t keep_below = 0;
  if (old != nullptr) {
    GP_ASSIGN_OR_RETURN(keep_below, MayReplace(*old, event));
  }
  GP_ASSIGN_OR_RETURN(const Job* const forgotten, JobToForget(old));
  std::unique_ptr<Job> added = NewJob(std::move(event.job), std::move(event.run), now.unix_ns);
  added->detail.mutable_summary()->set_run(jobs_.NextNumber(name));
  PersistNewJob persist{.detail = {}, .record = {}, .call = event.call, .forget = "", .keep_below = keep_below};
  Undo undo{.job = name, .removed = {}, .watches = {}};
  if (old != nullptr) {
    added->last_worker = LastWorkerOf(*old);
    added->last_stored_worker = added->last_worker == 0 ? 0 : old->last_stored_worker;
  }
  if (forgotten != nullptr) {
    persist.forget = forgotten == old ? "" : forgotten->name();
    undo.removed = jobs_.Remove(forgotten->name());
  }
  if (old != nullptr && forgotten != old) {
    persist.keep_as = KeptName(name, old->number());
    jobs_.Rename(*old, persist.keep_as);
    undo.kept = old;
  }
  Job& job = jobs_.Add(std::move(added));
  if (keep_below > 0) {
    KeepCurve(*old, keep_below, job);
  }
  persist.detail = job.detail;
  persist.record = RecordOf(job);
  outbox_.Emit(persist);
  if (job.stored.has_more) {
    outbox_.Emit(LoadIterations{name});
  }
  undo.watches = watches_.EndAll(name);
  undo.watches.merge(watches_.EndAll(persist.forget));
  undo_ = std::move(undo);
  outbox_.Log(LogLevel::kInfo, name, "PENDING: submitted");
  outbox_.AskToSchedule(name);
  v1::ApplyJobResponse response;
  *response.mutable_job() = SummaryOf(job);
  return response;
}

absl::StatusOr<Job*> JobRequests::JobToForget(Job* old) const {
  if (old != nullptr && old->is_damaged) {
    return old;
  }
  if (old != nullptr) {
    if (const std::vector<Job*> kept = jobs_.KeptOf(old->name()); kept.size() >= options_.max_kept_runs) {
      return kept.empty() ? old : kept.front();
    }
  }
  const std::vector<Job*> jobs = jobs_.InOrder();
  const auto is_over = [](const Job* job) { return IsFinal(job->state()); };
  const auto finished = static_cast<size_t>(std::ranges::count_if(jobs, is_over));
  if (jobs.size() < options_.max_jobs && finished < options_.max_finished_jobs) {
    return nullptr;
  }
  const auto oldest = std::ranges::find_if(jobs, is_over);
  if (oldest == jobs.end()) {
    return absl::ResourceExhaustedError(
        fmt::format("{} jobs are unfinished, which is this coordinator's limit; cancel some or wait", jobs_.size()));
  }
  return *oldest;
}

absl::Status JobRequests::On(Now /*now*/, const PersistFailed& event) {
  if (undo_.has_value() && undo_->job == event.job) {
    jobs_.Remove(event.job);
    if (undo_->kept != nullptr) {
      jobs_.Rename(*undo_->kept, event.job);
    }
    if (undo_->removed != nullptr) {
      jobs_.PutBack(std::move(undo_->removed));
    }
    watches_.PutBack(std::move(undo_->watches));
    undo_.reset();
    // Nodes that the new job was given within the same step are free again, since no message of it was sent.
    outbox_.AskToSchedule();
  }
  outbox_.Log(LogLevel::kError, event.job, "not submitted: {}", std::string(event.status.message()));
  return absl::InternalError(event.status.message());
}

// --- Questions ----------------------------------------------------------------------------------------------------

absl::StatusOr<v1::ListJobsResponse> JobRequests::On(Now /*now*/, const ListJobs& event) const {
  v1::ListJobsResponse response;
  for (const Job* job : jobs_.InOrder()) {
    if (event.all || !job->is_kept()) {
      *response.add_jobs() = SummaryOf(*job);
    }
  }
  return response;
}

absl::StatusOr<v1::GetJobResponse> JobRequests::On(Now /*now*/, const GetJob& event) const {
  GP_ASSIGN_OR_RETURN(const Job* job, jobs_.Named(event.name, event.run));
  v1::GetJobResponse response;
  *response.mutable_job() = DetailOf(*job);
  return response;
}

void JobRequests::On(Now /*now*/, const GetTrace& event) {
  const absl::StatusOr<Job*> job = jobs_.Named(event.name, event.run);
  if (!job.ok()) {
    outbox_.Reply(event.call, job.status());
  } else if (const auto& timelines = (*job)->iterations().timelines(); timelines.empty()) {
    outbox_.Emit(LoadTimelines{(*job)->name(), event.call});
  } else {
    outbox_.Reply(event.call, TraceOf(**job, timelines));
  }
}

absl::StatusOr<v1::GetTraceResponse> JobRequests::On(Now /*now*/, const TimelinesLoaded& event) const {
  const RunName run = RunNameOf(event.job);
  GP_ASSIGN_OR_RETURN(const Job* job, jobs_.Named(run.name, run.run));
  if (!event.timelines.ok()) {
    return absl::InternalError(event.timelines.status().message());
  }
  // Timelines of a plan that was made since are not stored yet.
  if (event.timelines->empty() || job->stored.timelines_void) {
    return absl::FailedPreconditionError(
        fmt::format("there are no timelines of {}: {}", DisplayName(run), WhyNoTimelines(*job)));
  }
  return TraceOf(*job, *event.timelines);
}

}  // namespace geopipe
