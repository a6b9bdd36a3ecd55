#include "coordinator/core/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "optimizer/base/quantities.h"

namespace geopipe {
Coordinator::Coordinator(CoordinatorOptions options, StoredState stored)
    : options_(std::move(options)),
      membership_(options_.version, options_.membership),
      to_adopt_(std::move(stored.jobs)),
      stored_links_(std::move(stored.links)),
      strays_(options_.run.rest_ns),
      probing_(options_.probing),
      next_incarnation_(options_.incarnation) {
  drained_.insert(stored.drained_sites.begin(), stored.drained_sites.end());
}

Effects Coordinator::Start(Now now) {
  started_ns_ = now.ns;
  last_step_ns_ = last_look_ns_ = now.ns;
  for (const StoredLink& link : stored_links_) {
    const int64_t age_ns = std::max<int64_t>(0, now.unix_ns - link.unix_time_ns);
    measured_.Restore(now.ns - age_ns, link.from_site, link.to_site, link.value, link.from_traffic);
    Emit(LinkMeasured{link.from_site, link.to_site, link.value});
  }
  for (StoredJob& stored : std::exchange(to_adopt_, {})) {
    const std::string name = stored.detail.summary().name();
    absl::StatusOr<std::unique_ptr<Job>> job = RestoreJob(next_sequence_, stored);
    if (!job.ok()) {
      stored.detail.mutable_summary()->set_state(v1::JOB_STATE_FAILED);  // read as one that is over
      absl::StatusOr<std::unique_ptr<Job>> over = RestoreJob(next_sequence_, stored);
      over.value()->detail.mutable_summary()->set_state(v1::JOB_STATE_PENDING);
      jobs_[name] = *std::move(over);
      Transition(now, *jobs_[name], v1::JOB_STATE_FAILED,
                 fmt::format("the stored job cannot be read by this version: {}", std::string(job.status().message())),
                 true);
    } else {
      jobs_[name] = *std::move(job);
      if (!IsFinal(jobs_[name]->state()) && jobs_[name]->state() != v1::JOB_STATE_PENDING) {
        Adopt(now, *jobs_[name], std::move(stored));
      } else if (jobs_[name]->state() == v1::JOB_STATE_PENDING) {
        jobs_[name]->stored_next = stored.next_iteration;
        jobs_[name]->past = IterationLog::Restore(0, options_.run.max_iterations_kept, 0, stored.next_iteration,
                                                  std::move(stored.iterations), {});
      }
    }
    ++next_sequence_;
  }
  Schedule(now);  // nobody is there yet: jobs that wait say so
  return std::exchange(effects_, {});
}

void Coordinator::Adopt(Now now, Job& job, StoredJob stored) {
  absl::StatusOr<std::unique_ptr<JobRun>> run =
      stored.record.run_incarnation() == 0
          ? absl::DataLossError(
                "it was stored by a version that could not resume jobs after a restart of the coordinator")
          : JobRun::Restore(job.spec, job.options, std::move(stored), options_.version, options_.run, now);
  if (!run.ok()) {
    Transition(
        now, job, v1::JOB_STATE_FAILED,
        fmt::format("the coordinator restarted and cannot resume the job: {}", std::string(run.status().message())),
        true);
    return;
  }
  job.run = *std::move(run);
  job.run->See(SurroundingsOf(now, job));
  if (job.has_trained()) {
    job.home.insert(job.run->life().nodes.begin(), job.run->life().nodes.end());
  }
  job.stored_next = job.iterations().next();
  next_incarnation_ = std::max(next_incarnation_, job.run->life().last_incarnation());
  job.saving_fails = !job.detail.checkpoint_trouble().empty();
  std::ranges::fill(job.iterations_before, job.iterations().oldest());
  Log(LogLevel::kInfo, job.name(),
      fmt::format("{}, as before the coordinator restarted; waiting for {}", JobStateName(job.state()),
                  Counted(std::ssize(job.run->life().nodes), "agent")));
}

Effects Coordinator::Step(Now now, Event event) {
  if (!std::holds_alternative<PersistFailed>(event)) {
    undo_.reset();
  }
  Forgive(now);
  const int64_t freed = strays_.freed();
  std::visit([&](auto& each) { On(now, each); }, event);
  if (std::holds_alternative<ApplyJob>(event) || std::holds_alternative<DrainSite>(event) ||
      std::holds_alternative<UncordonSite>(event)) {
    return std::exchange(effects_, {});
  }
  schedule_ = schedule_ || strays_.freed() > freed;
  while (std::exchange(schedule_, false)) {
    Schedule(now);
    probe_ = true;
  }
  if (std::exchange(probe_, false)) {
    ProbeLinks(now);
  }
  for (const std::string& name : std::exchange(changed_, {})) {
    std::vector<CallId> calls;
    for (const auto& [call, watch] : watches_) {
      if (watch.job == name) {
        calls.push_back(call);
      }
    }
    for (const CallId call : calls) {
      FeedWatch(call);
    }
  }
  if (now.ns >= flush_at_ns_) {
    Flush(now);
  }
  return std::exchange(effects_, {});
}

void Coordinator::Forgive(Now now) {
  const int64_t pause_ns = now.ns - std::exchange(last_step_ns_, now.ns);
  if (pause_ns < options_.own_pause_ns) {
    return;
  }
  Log(LogLevel::kWarning, "",
      fmt::format("this process was stopped for {}; deadlines are put off by as much", FormatSeconds(pause_ns)));
  started_ns_ += pause_ns;
  for (Job* job : InOrder()) {
    if (job->run != nullptr) {
      job->run->Forgive(pause_ns);
    }
  }
}

// A few megabytes of large jobs: not with every iteration.
std::optional<std::vector<v1::IterationTimeline>> Coordinator::TakeTimelines(Now now, Job& job) const {
  constexpr int64_t kEveryNs = 10'000'000'000;
  constexpr size_t kStored = 2;
  const std::deque<v1::IterationTimeline>& timelines = job.iterations().timelines();
  const int64_t latest = timelines.empty() ? -1 : timelines.back().iteration();
  const bool is_due = now.ns >= job.timelines_at_ns || IsFinal(job.state());
  if (!job.timelines_void && (latest < 0 || latest == job.timelines_stored || !is_due)) {
    return std::nullopt;
  }
  job.timelines_void = false;
  job.timelines_stored = latest;
  job.timelines_at_ns = now.ns + kEveryNs;
  return std::vector(timelines.end() - static_cast<std::ptrdiff_t>(std::min(kStored, timelines.size())),
                     timelines.end());
}

JobProgress Coordinator::TakeProgress(Now now, Job& job) {
  JobProgress progress{.job = job.name(), .finished = {}, .partial = {}};
  progress.timelines = TakeTimelines(now, job);
  for (JobProgress& earlier : not_stored_) {  // comes first
    if (earlier.job == job.name()) {
      progress.begins_at = earlier.begins_at.has_value() ? earlier.begins_at : progress.begins_at;
      std::ranges::move(earlier.finished, std::back_inserter(progress.finished));
      std::ranges::move(earlier.partial, std::back_inserter(progress.partial));
      if (!progress.timelines.has_value()) {
        progress.timelines = std::move(earlier.timelines);
      }
    }
  }
  std::erase_if(not_stored_, [&](const JobProgress& earlier) { return earlier.job == job.name(); });
  IterationLog& log = job.run->told().iterations;
  if (log.next() < job.stored_next || log.oldest() > job.stored_next) {  // it resumes from another checkpoint
    progress.begins_at = log.oldest() > job.stored_next ? log.oldest() : log.next();
    progress.finished.clear();
    job.stored_next = *progress.begins_at;
  }
  for (int64_t i = std::max(job.stored_next, log.oldest()); i < log.next(); ++i) {
    progress.finished.push_back(log.Get(i));
  }
  job.stored_next = log.next();
  std::ranges::move(log.TakeNewPartials(), std::back_inserter(progress.partial));
  return progress;
}

void Coordinator::Flush(Now now) {
  PersistProgress persist{.progress = std::exchange(not_stored_, {}), .links = {}};
  for (const std::string& name : std::exchange(dirty_jobs_, {})) {
    if (Job* job = FindJob(name); job != nullptr && job->run != nullptr) {
      if (JobProgress progress = TakeProgress(now, *job); !progress.empty()) {
        persist.progress.push_back(std::move(progress));
      }
    }
  }
  for (const auto& [from, to] : std::exchange(dirty_links_, {})) {
    if (const MeasuredDirection* direction = measured_.Find(from, to); direction != nullptr) {
      persist.links.push_back({.from_site = from,
                               .to_site = to,
                               .value = direction->value,
                               .from_traffic = direction->from_traffic,
                               .unix_time_ns = now.unix_ns});
    }
  }
  if (!persist.progress.empty() || !persist.links.empty()) {
    Emit(std::move(persist));
    flush_at_ns_ = now.ns + options_.flush_interval_ns;
  }
  for (const NodeKey& node : std::exchange(to_acknowledge_, {})) {
    Acknowledge(node);
  }
}

void Coordinator::On(Now now, ProgressNotStored& event) {
  if (!std::exchange(store_failing_, true)) {
    Log(LogLevel::kError, "", fmt::format("{}; trying again", std::string(event.status.message())));
  }
  // Effects after the failed one were dropped: the acknowledgements are due again, and agents keep what is not
  // acknowledged.
  not_stored_ = std::move(event.progress.progress);
  for (const StoredLink& link : event.progress.links) {
    dirty_links_.insert({link.from_site, link.to_site});
  }
  for (const auto& [key, node] : membership_.nodes()) {
    to_acknowledge_.insert(key);
  }
  flush_at_ns_ = now.ns + 10 * options_.flush_interval_ns;
}

// --- Time and the planner -----------------------------------------------------------------------------------------

void Coordinator::On(Now now, Tick& /*event*/) {
  for (const Membership::HealthChange& change : membership_.Tick(now.ns)) {
    const std::string silent = fmt::format("agent {} has not been heard from for {}", DisplayName(change.node),
                                           FormatSeconds(change.silent_ns));
    if (change.health == NodeHealth::kSuspect) {
      Log(LogLevel::kWarning, "", silent + ": suspect");
      continue;
    }
    Log(LogLevel::kError, "", silent + ": failed");
    if (const NodeRecord* node = membership_.Find(change.node); node->session.has_value()) {
      const SessionId session = *node->session;
      membership_.Closed(session);
      Emit(CloseSession{session, absl::UnavailableError(silent + "; dial again")});
    }
    NoteLostNode(now, change.node);
  }
  strays_.OnTick(now.ns);
  NoteUnheard(now);
  for (Job* job : InOrder()) {
    if (job->run != nullptr) {
      job->run->See(SurroundingsOf(now, *job));
      job->run->OnTick(now.ns);
    }
    LookAfter(now, *job);
    Drive(now, *job);
    SayWait(now, *job);
    // A waiting job is scheduled again when its wait for links or its delay is over, and as long as some of its nodes
    // are not heard.
    schedule_ = schedule_ || (job->state() == v1::JOB_STATE_PENDING &&
                              (now.ns >= job->links_by_ns || (job->again_at_ns > 0 && now.ns >= job->again_at_ns) ||
                               !job->unheard_ns.empty()));
  }
  if (now.ns >= probing_.next_ns()) {
    CarryOut(now, probing_.OnTick(now.ns));
    probe_ = true;
  }
}

void Coordinator::On(Now now, PlannerBegun& event) {
  Job* job = FindJob(event.job);
  if (job != nullptr && job->run != nullptr && job->run->life().incarnation == event.incarnation) {
    job->run->OnPlanningBegun(now.ns);
  }
}

void Coordinator::On(Now now, SecretDrawn& event) {
  Job* job = FindJob(event.job);
  if (job != nullptr && job->run != nullptr && job->run->life().incarnation == event.incarnation) {
    job->run->TakeSecret(std::move(event.secret));
    Drive(now, *job);
  }
}

void Coordinator::On(Now now, PlannerDone& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || job->run == nullptr || job->run->life().incarnation != event.incarnation ||
      job->state() != v1::JOB_STATE_PLANNING || job->run->life().plan != nullptr) {
    return;
  }
  absl::Status status = event.result.status();
  if (status.ok()) {
    status = job->run->SetPlan(&*event.result, std::move(event.secret));
  }
  if (status.ok() && !job->run->life().FindsState()) {
    status = absl::FailedPreconditionError(
        "the plan leaves out the nodes that hold the job's checkpoint; name their sites in placement.sites");
  }
  const std::vector<NodeKey> nodes = job->run->life().allocation.nodes();
  const bool is_reduced = std::ranges::any_of(
      job->home, [&](const NodeKey& node) { return std::ranges::find(nodes, node) == nodes.end(); });
  if (!status.ok() && job->has_trained() && !job->needs_home && is_reduced) {
    job->needs_home = true;
    Move(now, *job, v1::JOB_STATE_PENDING,
         fmt::format("no plan for {}: {}", fmt::join(job->run->life().allocation.site_names(), ", "),
                     std::string(status.message())));
    return;
  }
  if (!status.ok()) {
    job->detail.mutable_summary()->set_cause_code(status.raw_code());
    Move(now, *job, v1::JOB_STATE_FAILED, fmt::format("no plan: {}", std::string(status.message())));
    return;
  }
  SetPlanned(*job, *event.result);
  job->timelines_void = true;
  for (const std::string& warning : event.result->warnings) {
    Log(LogLevel::kWarning, job->name(), warning);
  }
  Drive(now, *job);
}

}  // namespace geopipe
