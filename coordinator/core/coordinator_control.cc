// Answers the requests of people and programs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/planning.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

absl::Status NoSuchJob(const std::string& name) {
  return absl::NotFoundError(fmt::format("there is no job \"{}\"; `geopipectl get jobs` lists them", name));
}

std::string ReplaceSentence(const Job& old, int64_t last) {
  const v1::JobSummary summary = SummaryOf(old);
  const std::string from =
      last == 0 ? "" : fmt::format("go on from its checkpoint of iteration {} with --resume, ", last);
  return fmt::format(
      "job {} is {} with {} iterations done, whose history this would drop: {}drop it with --replace, or "
      "give this one another name",
      old.name(), JobStateName(old.state()), summary.iterations_done(), from);
}

// Tells whether the job may take the place of this finished one, and below which iteration that one's history stays.
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

}  // namespace

void Coordinator::On(Now now, ApplyJob& event) {
  if (absl::Status status = CheckRunnable(event.job, event.run); !status.ok()) {
    ReplyError(event.call, std::move(status));
    return;
  }
  if (absl::Status status = CheckBackend(event.job, event.run, Offers()); !status.ok()) {
    ReplyError(event.call, std::move(status));
    return;
  }
  const std::string name = event.job.name;
  Job* existing = FindJob(name);
  if (existing != nullptr && !IsFinal(existing->state())) {
    ReplyError(event.call,
               absl::AlreadyExistsError(fmt::format("job {} is {}; cancel it first, or give this one another name",
                                                    name, JobStateName(existing->state()))));
    return;
  }
  const absl::StatusOr<int64_t> keep_below =
      existing == nullptr ? absl::StatusOr<int64_t>(0) : MayReplace(*existing, event);
  if (!keep_below.ok()) {
    ReplyError(event.call, keep_below.status());
    return;
  }
  Undo undo{.job = name, .removed = {}, .watches = {}, .finished = finished_};
  std::string forget;
  if (existing == nullptr && jobs_.size() >= options_.max_jobs) {
    std::optional<std::string> oldest = JobToForget();
    if (!oldest.has_value()) {
      ReplyError(event.call,
                 absl::ResourceExhaustedError(fmt::format(
                     "{} jobs are unfinished, which is this coordinator's limit; cancel some or wait", jobs_.size())));
      return;
    }
    forget = *std::move(oldest);
    undo.removed.push_back(std::move(jobs_.extract(forget).mapped()));
  }
  if (existing != nullptr) {
    undo.removed.push_back(std::move(jobs_.extract(name).mapped()));
  }
  Job& job = *(jobs_[name] = NewJob(next_sequence_++, std::move(event.job), std::move(event.run), now.unix_ns));
  if (*keep_below > 0) {
    KeepCurve(*undo.removed.back(), *keep_below, job);
  }
  Emit(PersistNewJob{job.detail, event.call, forget, *keep_below});
  if (job.past_stored) {
    Emit(LoadIterations{name});
  }
  for (const std::unique_ptr<Job>& removed : undo.removed) {
    std::erase(finished_, removed->name());
    std::erase_if(watches_, [&](const auto& entry) {
      if (entry.second.job != removed->name()) {
        return false;
      }
      Emit(EndWatch{entry.first, absl::AbortedError(fmt::format("job {} was replaced", removed->name()))});
      undo.watches.insert(entry);
      return true;
    });
  }
  undo_ = std::move(undo);
  Log(LogLevel::kInfo, name, "PENDING: submitted");
  v1::ApplyJobResponse response;
  *response.mutable_job() = SummaryOf(job);
  ReplyTo(event.call, std::move(response));
  schedule_ = true;
}

void Coordinator::On(Now /*now*/, PersistFailed& event) {
  if (undo_.has_value() && undo_->job == event.job) {
    jobs_.erase(event.job);
    for (std::unique_ptr<Job>& removed : undo_->removed) {
      const std::string name = removed->name();
      jobs_[name] = std::move(removed);
    }
    watches_.merge(undo_->watches);
    finished_ = std::move(undo_->finished);
    undo_.reset();
    // Nodes that the new job was given within the same step are free again, since no message of it was sent.
    schedule_ = true;
  }
  Log(LogLevel::kError, event.job, fmt::format("not submitted: {}", std::string(event.status.message())));
  ReplyError(event.call, absl::InternalError(event.status.message()));
}

// The oldest finished job.
std::optional<std::string> Coordinator::JobToForget() const {
  const Job* oldest = nullptr;
  for (const auto& [name, job] : jobs_) {
    if (IsFinal(job->state()) && (oldest == nullptr || job->sequence < oldest->sequence)) {
      oldest = job.get();
    }
  }
  return oldest == nullptr ? std::nullopt : std::optional(oldest->name());
}

void Coordinator::On(Now /*now*/, ListJobs& event) {
  v1::ListJobsResponse response;
  for (const Job* job : InOrder()) {
    *response.add_jobs() = SummaryOf(*job);
  }
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now /*now*/, GetJob& event) {
  const Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  v1::GetJobResponse response;
  *response.mutable_job() = DetailOf(*job);
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now /*now*/, GetTrace& event) {
  const Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  if (job->iterations().timelines().empty()) {
    Emit(LoadTimelines{event.name, event.call});
    return;
  }
  v1::GetTraceResponse response;
  *response.mutable_job() = DetailOf(*job);
  for (const v1::IterationTimeline& timeline : job->iterations().timelines()) {
    *response.add_iterations() = timeline;
  }
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now /*now*/, TimelinesLoaded& event) {
  const Job* job = FindJob(event.job);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.job));
    return;
  }
  if (!event.timelines.ok()) {
    ReplyError(event.call, absl::InternalError(event.timelines.status().message()));
    return;
  }
  // Timelines of a plan that was made since are not stored yet.
  if (event.timelines->empty() || job->timelines_void) {
    const bool is_over = IsFinal(job->state());
    const std::string_view why =
        job->iterations().next() == 0
            ? (is_over ? "it ended before its first iteration" : "its first iteration is not complete")
            : (is_over ? "none was kept of its iterations: its ranks reported none that was whole, or it ran under a "
                         "version that kept none"
                       : "no iteration of its plan has been reported whole yet");
    ReplyError(event.call,
               absl::FailedPreconditionError(fmt::format("there are no timelines of job {}: {}", event.job, why)));
    return;
  }
  v1::GetTraceResponse response;
  *response.mutable_job() = DetailOf(*job);
  for (v1::IterationTimeline& timeline : *event.timelines) {
    *response.add_iterations() = std::move(timeline);
  }
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, CancelJob& event) {
  Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  v1::CancelJobResponse response;
  if (job->state() == v1::JOB_STATE_CANCELLED) {
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    ReplyTo(event.call, std::move(response));
    return;
  }
  if (IsFinal(job->state())) {
    ReplyError(event.call,
               absl::FailedPreconditionError(fmt::format("job {} is already {}: {}", event.name,
                                                         JobStateName(job->state()), job->detail.summary().cause())));
    return;
  }
  if (event.checkpoint && job->spec.checkpoint.path.empty()) {
    ReplyError(event.call,
               absl::FailedPreconditionError(fmt::format(
                   "job {} has no checkpoint.path to write a last checkpoint to; cancel it without one", event.name)));
    return;
  }
  const std::string reason = event.reason.empty() ? "cancelled by request" : event.reason;
  if (event.checkpoint) {
    job->closing = reason;
    Emit(PersistRecord{job->name(), RecordOf(*job)});
    Log(LogLevel::kInfo, job->name(), fmt::format("it is to end with a checkpoint: {}", reason));
    Drive(now, *job);
  } else {
    job->waiting_for.clear();
    Finish(now, *job, v1::JOB_STATE_CANCELLED, reason);
  }
  *response.mutable_job() = SummaryOf(*job);
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, PauseJob& event) {
  Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  v1::PauseJobResponse response;
  if (job->run != nullptr && job->run->life().wants.pause) {
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    ReplyTo(event.call, std::move(response));
    return;
  }
  if (job->state() != v1::JOB_STATE_RUNNING && job->state() != v1::JOB_STATE_PAUSED) {
    ReplyError(event.call,
               absl::FailedPreconditionError(fmt::format("job {} is {}; only a job that is RUNNING can be paused",
                                                         event.name, JobStateName(job->state()))));
    return;
  }
  job->run->Pause();
  Emit(PersistRecord{job->name(), RecordOf(*job)});
  Log(LogLevel::kInfo, job->name(), "a pause is wanted");
  Drive(now, *job);
  *response.mutable_job() = SummaryOf(*job);
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, ResumeJob& event) {
  Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  v1::ResumeJobResponse response;
  if (job->run == nullptr || !job->run->life().wants.pause) {
    const bool goes_on = job->state() == v1::JOB_STATE_PAUSED || job->state() == v1::JOB_STATE_DEPLOYING ||
                         job->state() == v1::JOB_STATE_RUNNING;
    if (!goes_on) {
      ReplyError(event.call, absl::FailedPreconditionError(
                                 fmt::format("job {} is {}, not paused", event.name, JobStateName(job->state()))));
      return;
    }
    response.set_already(true);
    *response.mutable_job() = SummaryOf(*job);
    ReplyTo(event.call, std::move(response));
    return;
  }
  job->closing.clear();
  job->run->Resume(std::move(event.secret));
  const int transitions = job->detail.transitions_size();
  Drive(now, *job);
  if (job->detail.transitions_size() == transitions) {  // else it is stored with the state: an epoch without it would
    Emit(PersistRecord{job->name(), RecordOf(*job)});   // be waited for
  }
  *response.mutable_job() = SummaryOf(*job);
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, CheckpointJob& event) {
  Job* job = FindJob(event.name);
  if (job == nullptr) {
    ReplyError(event.call, NoSuchJob(event.name));
    return;
  }
  Reaction reaction;
  const absl::StatusOr<int64_t> iteration =
      job->run == nullptr ? absl::FailedPreconditionError(
                                fmt::format("job {} is {}; a checkpoint can be asked for while it is RUNNING or PAUSED",
                                            event.name, JobStateName(job->state())))
                          : job->run->Checkpoint(reaction);
  if (!iteration.ok()) {
    ReplyError(event.call, iteration.status());
    return;
  }
  job->detail.clear_checkpoint_trouble();  // trouble reported later may concern this one
  React(now, *job, std::move(reaction));
  v1::CheckpointJobResponse response;
  *response.mutable_job() = SummaryOf(*job);
  response.set_iteration(*iteration);
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, ListSites& event) {
  v1::ListSitesResponse response;
  v1::SiteStatus* site = nullptr;
  for (const auto& [key, node] : membership_.nodes()) {
    if (site == nullptr || site->name() != key.site) {
      site = response.add_sites();
      site->set_name(key.site);
      site->set_drained(drained_.contains(key.site));
    }
    v1::NodeStatus& status = *site->add_nodes();
    *status.mutable_spec() = node.spec;
    status.set_connected(node.usable());
    status.set_incarnation(node.incarnation);
    status.set_version(node.version);
    status.set_last_heartbeat_age_ns(std::max<int64_t>(0, now.ns - node.last_heard_ns));
    for (const Job* job : InOrder()) {
      if (job->run != nullptr && job->run->life().nodes.contains(key)) {
        const auto workers = std::ranges::count_if(job->run->life().posts, [&](const auto& entry) {
          return entry.first.node_key() == key && entry.second.duty != Post::Duty::kStopped;
        });
        *status.mutable_workers_summary() +=
            fmt::format("{}{} running: {}", status.workers_summary().empty() ? "" : ", ", workers, job->name());
      }
    }
  }
  ReplyTo(event.call, std::move(response));
}

void Coordinator::On(Now now, ListLinks& event) {
  v1::ListLinksResponse response;
  for (v1::LinkStatus& status : LinkTable::Of(membership_.nodes()).Statuses(now.ns, measured_)) {
    status.set_trouble(probing_.TroubleOf(PairOf(status.from_site(), status.to_site())));
    *response.add_links() = std::move(status);
  }
  ReplyTo(event.call, std::move(response));
}

// --- Watches ------------------------------------------------------------------------------------------------------

void Coordinator::On(Now /*now*/, WatchStart& event) {
  const Job* job = FindJob(event.name);
  if (job == nullptr) {
    Emit(EndWatch{event.call, NoSuchJob(event.name)});
    return;
  }
  if (watches_.size() >= options_.max_watches) {
    Emit(EndWatch{event.call,
                  absl::ResourceExhaustedError(fmt::format(
                      "{} watches are open, which is this coordinator's limit; try again later", watches_.size()))});
    return;
  }
  // Iterations no longer kept are passed over: a late watcher gets what there is.
  const bool loading = job->past_stored && event.from_iteration < job->iterations().oldest();
  watches_[event.call] = {
      .job = event.name,
      .next_transition = 0,
      .from_iteration = std::max<int64_t>(event.from_iteration, 0),
      .next_iteration = loading ? std::max<int64_t>(event.from_iteration, 0)
                                : std::max({event.from_iteration, job->iterations().oldest(), int64_t{0}}),
      .evaluation = std::max<int64_t>(event.from_iteration, 0) - 1,
      .credits = event.credits,
      .loading = loading,
      .next_notice = job->notices_told + std::ssize(job->notices)};
  if (loading) {
    Emit(LoadIterations{event.name});
  } else {
    FeedWatch(event.call);
  }
}

void Coordinator::On(Now /*now*/, IterationsLoaded& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    return;
  }
  if (job->past_stored && event.iterations.ok()) {
    const int64_t next = event.iterations->empty() ? job->past.next() : event.iterations->back().iteration() + 1;
    job->past = IterationLog::Restore(0, options_.run.max_iterations_kept, 0, next, *std::move(event.iterations), {});
    job->past_stored = false;
    if (IsFinal(job->state())) {
      KeepPast(job->name());
    } else if (job->run != nullptr && job->run->life().plan == nullptr && !job->has_trained()) {  // it goes on
      job->run->GoOnAfter(std::move(job->past));
    }
  }
  std::vector<CallId> waiting;
  for (auto& [call, watch] : watches_) {
    if (watch.job == event.job && std::exchange(watch.loading, false)) {
      watch.next_iteration = std::max(watch.next_iteration, job->past.oldest());
      waiting.push_back(call);
    }
  }
  for (const CallId call : waiting) {
    FeedWatch(call);
  }
}

void Coordinator::On(Now /*now*/, WatchMore& event) {
  if (const auto watch = watches_.find(event.call); watch != watches_.end()) {
    watch->second.credits += event.credits;
    FeedWatch(event.call);
  }
}

void Coordinator::On(Now /*now*/, WatchStop& event) { watches_.erase(event.call); }

// Sends the watcher the messages that it has not seen, as far as its credits go, in the order in which they happened: a
// transition after the iterations that were finished before it.
void Coordinator::FeedWatch(CallId call) {
  const auto found = watches_.find(call);
  if (found == watches_.end()) {
    return;
  }
  Watch& watch = found->second;
  if (watch.loading) {
    return;
  }
  const Job& job = *jobs_.at(watch.job);
  const IterationLog& log = job.iterations();
  if (job.run != nullptr && !job.run->life().checkpoints.resumable.empty()) {  // earlier ones were of another run
    const int64_t first = job.run->life().checkpoints.FirstIteration();
    const bool none_told = log.next() <= first;  // where it begins may still change
    watch.next_iteration =
        std::max(none_told && log.oldest() == log.next() ? watch.from_iteration : watch.next_iteration,
                 std::min(first, log.oldest()));
  }
  if (watch.next_iteration < log.oldest()) {
    Emit(EndWatch{call, absl::ResourceExhaustedError(fmt::format(
                            "this watch of job {} fell more than {} iterations behind; watch again from iteration {}",
                            watch.job, options_.run.max_iterations_kept, log.oldest()))});
    watches_.erase(found);
    return;
  }
  // The next evaluation, once the iterations before it are told.
  const auto next_evaluation = [&]() -> const v1::EvaluationSummary* {
    const auto& all = job.detail.evaluations();
    const auto next = std::ranges::upper_bound(all, watch.evaluation, {}, &v1::EvaluationSummary::iteration);
    return next != all.end() && next->iteration() <= watch.next_iteration ? &*next : nullptr;
  };
  SendToWatcher batch{.call = call, .messages = {}};
  while (watch.credits > 0) {
    const v1::EvaluationSummary* const evaluation = next_evaluation();
    const int transitions = job.detail.transitions_size();
    if (evaluation != nullptr) {
      watch.evaluation = evaluation->iteration();
      *batch.messages.emplace_back().mutable_evaluation() = *evaluation;
    } else if (watch.next_transition < transitions &&
               std::min(job.iterations_before[watch.next_transition], log.next()) <= watch.next_iteration) {
      *batch.messages.emplace_back().mutable_transition() = job.detail.transitions(watch.next_transition++);
    } else if (watch.next_iteration < log.next()) {
      *batch.messages.emplace_back().mutable_iteration() = log.Get(watch.next_iteration++);
    } else if (!std::exchange(watch.greeted, true)) {
      const std::string trouble = TroubleOf(job);
      if (trouble.empty()) {
        continue;
      }
      v1::JobNotice& notice = *batch.messages.emplace_back().mutable_notice();
      notice.set_text(trouble);
      notice.set_is_warning(true);
    } else if (watch.next_notice < job.notices_told + std::ssize(job.notices)) {
      watch.next_notice = std::max(watch.next_notice, job.notices_told);
      *batch.messages.emplace_back().mutable_notice() = job.notices[watch.next_notice++ - job.notices_told];
    } else {
      break;
    }
    --watch.credits;
  }
  if (!batch.messages.empty()) {
    Emit(std::move(batch));
  }
  if (IsFinal(job.state()) && watch.next_transition == job.detail.transitions_size() &&
      watch.next_iteration >= log.next() && next_evaluation() == nullptr) {
    Emit(EndWatch{call, absl::OkStatus()});
    watches_.erase(found);
  }
}

}  // namespace geopipe
