#include "coordinator/core/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "coordinator/core/cluster/allocation.h"
#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

// The host of all nodes of the site; empty: they are on several.
std::string HostOf(const AllocatedSite& site, const std::map<NodeKey, NodeRecord>& nodes) {
  std::optional<std::string> host;
  for (const AllocatedNode& node : site.nodes) {
    const auto found = nodes.find({node.spec.site(), node.spec.node()});
    if (found == nodes.end() || host.value_or(found->second.host) != found->second.host) {
      return "";
    }
    host = found->second.host;
  }
  return host.value_or("");
}

// Where messages between devices whose time is kept take nothing of this run's own: inside a host, over memory and over
// links that are rehearsed.
void MarkKeptTime(const Allocation& allocation, const std::map<NodeKey, NodeRecord>& nodes, const LinkTable& links,
                  ClusterSpec& cluster) {
  std::map<std::string_view, std::string> hosts;
  for (size_t i = 0; i < allocation.sites.size(); ++i) {
    const std::string& host = hosts[cluster.sites[i].name] = HostOf(allocation.sites[i], nodes);
    cluster.sites[i].keeps_time = !host.empty();
  }
  for (LinkSpec& link : cluster.links) {
    const std::string& host = hosts[link.site_a];
    link.keeps_time = !host.empty() && host == hosts[link.site_b] && links.Shaped(link.site_a, link.site_b);
  }
}

std::string BeginCause(const Epoch& epoch, JobState from) {
  if (from == v1::JOB_STATE_REPLANNING) {
    return fmt::format("the job goes on where it is from iteration {}", epoch.first_iteration);
  }
  if (from == v1::JOB_STATE_RECOVERING && !epoch.from_checkpoint.has_value()) {
    return epoch.first_iteration == 0
               ? "the job begins anew after a loss"
               : fmt::format("the job goes on from iteration {} after a loss", epoch.first_iteration);
  }
  if (epoch.from_checkpoint.has_value()) {
    return fmt::format("the job goes on from the checkpoint of iteration {}", epoch.first_iteration);
  }
  if (from == v1::JOB_STATE_PLANNING) {
    return epoch.number == 1 ? "the job begins" : "the job begins anew";
  }
  return "the job was resumed";
}

}  // namespace

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
          ? absl::DataLossError("it was stored by a version whose jobs did not outlive their coordinator")
          : JobRun::Restore(job.spec, job.options, std::move(stored), options_.version, options_.run, now);
  if (!run.ok()) {
    Transition(now, job, v1::JOB_STATE_FAILED,
               fmt::format("the coordinator restarted, and cannot go on with the job: {}",
                           std::string(run.status().message())),
               true);
    return;
  }
  job.run = *std::move(run);
  job.run->SetLeaving(DrainedOf(*job.run));
  if (job.has_trained()) {
    job.home.insert(job.run->nodes().begin(), job.run->nodes().end());
  }
  job.stored_next = job.iterations().next();
  next_incarnation_ = std::max(next_incarnation_, job.run->last_incarnation());
  std::ranges::fill(job.iterations_before, job.iterations().oldest());
  Log(LogLevel::kInfo, job.name(),
      fmt::format("{} as before the coordinator restarted; {} to hear from", JobStateName(job.state()),
                  Counted(std::ssize(job.run->nodes()), "agent")));
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
      fmt::format("this process did nothing for {}; no deadline is held against others for it",
                  FormatSeconds(pause_ns)));
  started_ns_ += pause_ns;
  for (Job* job : InOrder()) {
    if (job->run != nullptr) {
      job->run->Forgive(pause_ns);
    }
  }
}

JobProgress Coordinator::TakeProgress(Job& job) {
  JobProgress progress{.job = job.name(), .finished = {}, .partial = {}};
  for (JobProgress& earlier : not_stored_) {  // comes first
    if (earlier.job == job.name()) {
      std::ranges::move(earlier.finished, std::back_inserter(progress.finished));
      std::ranges::move(earlier.partial, std::back_inserter(progress.partial));
    }
  }
  std::erase_if(not_stored_, [&](const JobProgress& earlier) { return earlier.job == job.name(); });
  IterationLog& log = job.run->iterations();
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
      if (JobProgress progress = TakeProgress(*job); !progress.finished.empty() || !progress.partial.empty()) {
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
  // Nothing after it in its step was done: the acknowledgements are due again, and agents hold what is not
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
    LookAfter(now, *job);
    if (job->run != nullptr) {
      job->run->Hear(SilencesOf(now, *job->run, Silent::kOrDeaf));
      React(now, *job, job->run->OnTick(now.ns, SilencesOf(now, *job->run, Silent::kYes)));
    }
    StartLost(*job, now);
    // It has waited long enough for its links.
    // Or for its nodes.
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
  if (job != nullptr && job->run != nullptr && job->run->incarnation() == event.incarnation) {
    job->run->OnPlanningBegun(now.ns);
  }
}

void Coordinator::On(Now now, SecretDrawn& event) {
  Job* job = FindJob(event.job);
  if (job != nullptr && job->run != nullptr && job->run->incarnation() == event.incarnation &&
      (job->state() == v1::JOB_STATE_RECOVERING || job->state() == v1::JOB_STATE_REPLANNING)) {
    React(now, *job, job->run->TakeSecret(std::move(event.secret)));
  }
}

// Another coordinator would otherwise not know them, and stop them.
void Coordinator::StartLost(Job& job, Now now) {
  if (job.run == nullptr || !job.run->RestartDue(now.ns)) {
    return;
  }
  std::vector<NodeMessage> sends = job.run->StartLost(now.ns, next_incarnation_);
  Emit(PersistRecord{job.name(), RecordOf(job)});
  for (NodeMessage& message : sends) {
    SendToNode(std::move(message));
  }
}

void Coordinator::On(Now now, PlannerDone& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || job->run == nullptr || job->run->incarnation() != event.incarnation ||
      job->state() != v1::JOB_STATE_PLANNING || job->run->plan() != nullptr) {
    return;
  }
  absl::Status status = event.result.status();
  if (status.ok()) {
    status = job->run->SetPlan(&*event.result, std::move(event.secret));
  }
  if (status.ok() && !job->run->FindsState()) {
    status = absl::FailedPreconditionError("it has no use for the nodes that have the job's state");
  }
  const std::vector<NodeKey> nodes = job->run->allocation().nodes();
  const bool is_reduced = std::ranges::any_of(
      job->home, [&](const NodeKey& node) { return std::ranges::find(nodes, node) == nodes.end(); });
  if (!status.ok() && job->has_trained() && !job->needs_home && is_reduced) {
    job->needs_home = true;
    Move(now, *job, v1::JOB_STATE_PENDING,
         fmt::format("no plan for {}: {}", fmt::join(job->run->allocation().site_names(), ", "),
                     std::string(status.message())));
    return;
  }
  if (!status.ok()) {
    job->detail.mutable_summary()->set_cause_code(status.raw_code());
    Move(now, *job, v1::JOB_STATE_FAILED, fmt::format("no plan: {}", std::string(status.message())));
    return;
  }
  SetPlanned(*job, *event.result);
  React(now, *job, job->run->Begin());
}

// --- Jobs ---------------------------------------------------------------------------------------------------------

Job* Coordinator::FindJob(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

std::vector<Job*> Coordinator::InOrder() {
  std::vector<Job*> jobs;
  for (const auto& [name, job] : jobs_) {
    jobs.push_back(job.get());
  }
  std::ranges::sort(jobs, {}, &Job::sequence);
  return jobs;
}

void Coordinator::Transition(Now now, Job& job, JobState to, const std::string& cause, bool outcome_changed) {
  const JobState from = job.state();
  AddTransition(job, to, cause, now.unix_ns);
  const int last = job.detail.transitions_size() - 1;
  PersistTransition persist{.job = job.name(), .sequence = last, .transition = job.detail.transitions(last)};
  if (outcome_changed) {
    persist.outcome = OutcomeOf(job);
  }
  if (job.run != nullptr) {
    persist.record = IsFinal(to) ? v1::JobRecord() : RecordOf(job);
    persist.progress = TakeProgress(job);
  }
  Emit(std::move(persist));
  Log(to == v1::JOB_STATE_FAILED ? LogLevel::kError : LogLevel::kInfo, job.name(),
      fmt::format("{} -> {}: {}", JobStateName(from), JobStateName(to), cause));
  changed_.insert(job.name());
}

void Coordinator::React(Now now, Job& job, Reaction reaction) {
  if (reaction.unlisted) {  // nodes may be about to remove them
    NoteUnlisted(job);
    Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
  }
  for (NodeMessage& message : reaction.sends) {
    SendToNode(std::move(message));
  }
  dirty_jobs_.insert(job.name());
  if (reaction.iterations_finished > 0) {
    changed_.insert(job.name());
    IterationsFinished finished{.job = job.name(), .tokens_per_iteration = TokensPerIteration(job), .iterations = {}};
    const IterationLog& log = job.iterations();
    for (int64_t i = std::max(log.next() - reaction.iterations_finished, log.oldest()); i < log.next(); ++i) {
      finished.iterations.push_back(log.Get(i));
    }
    Emit(std::move(finished));
  }
  NoteTraffic(now, reaction.traffic);
  if (reaction.checkpoint.has_value()) {
    job.return_due = true;
    NoteCheckpoint(job, *reaction.checkpoint, now.unix_ns);
    Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
    Log(LogLevel::kInfo, job.name(),
        fmt::format("checkpoint of iteration {}: {} after {}", reaction.checkpoint->identity.iteration,
                    FormatBytes(reaction.checkpoint->bytes), FormatSeconds(reaction.checkpoint->duration_ns)));
  }
  if (reaction.copied.has_value()) {
    NoteCopied(job, *reaction.copied, now.unix_ns);
    Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
    Log(LogLevel::kInfo, job.name(),
        fmt::format("checkpoint of iteration {} is {}", reaction.copied->identity.iteration,
                    reaction.copied->is_copied() ? "at other sites as well" : "at the sites that the job stays at"));
  }
  if (reaction.checkpoint_trouble.has_value()) {
    job.detail.set_checkpoint_trouble(ToUtf8(*reaction.checkpoint_trouble));
    Log(LogLevel::kWarning, job.name(), *reaction.checkpoint_trouble);
  }
  if (reaction.loss.has_value()) {
    const bool begins = reaction.change.has_value();
    NoteLoss(job, *reaction.loss, begins, now.unix_ns);
    job.again_at_ns = now.ns + reaction.loss->delay_ns;
    if (!begins) {
      Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
      Log(LogLevel::kWarning, job.name(), reaction.loss->cause);
    }
  }
  if (reaction.wants_secret) {
    Emit(DrawSecret{job.name(), job.run->incarnation()});
  }
  if (reaction.change.has_value()) {
    Move(now, job, reaction.change->to, reaction.change->cause);
  }
}

void Coordinator::Move(Now now, Job& job, JobState to, const std::string& cause) {
  if (to == v1::JOB_STATE_FAILED && DoWithoutNewNodes(job)) {
    BeginAgain(now, job, cause);
    return;
  }
  if (IsFinal(to)) {
    Finish(now, job, to, cause);
    return;
  }
  switch (to) {
    case v1::JOB_STATE_PENDING:
      return BeginAgain(now, job, cause);
    case v1::JOB_STATE_PLANNING:
      job.run->EnterPlanning();
      NoteUnlisted(job);  // what nodes have told of their folders
      *job.detail.mutable_profile() = ToProto(job.run->profile());
      Transition(now, job, to, cause, true);
      Plan(now, job);
      return;
    case v1::JOB_STATE_DEPLOYING:
      job.home.insert(job.run->nodes().begin(), job.run->nodes().end());
      NoteEpochBegun(job, BeginCause(*job.run->epoch(), job.state()), now.unix_ns);
      Transition(now, job, to, cause, true);
      for (NodeMessage& message : job.run->EnterDeploying(now.ns, LinkTable::Of(membership_.nodes()))) {
        SendToNode(std::move(message));
      }
      schedule_ = true;  // idle devices are free again
      return;
    case v1::JOB_STATE_RUNNING:
      NoteRecovered(job, now.unix_ns);
      Transition(now, job, to, cause, true);
      React(now, job, job.run->EnterRunning(now.ns));
      return;
    case v1::JOB_STATE_RECOVERING:
      NoteEpochEnded(job, job.run->reached(), now.unix_ns);
      Transition(now, job, to, cause, true);
      for (NodeMessage& message : job.run->EnterRecovering(now.ns)) {
        SendToNode(std::move(message));
      }
      job.run->Hear(SilencesOf(now, *job.run, Silent::kOrDeaf));
      StartLost(job, now);
      return;
    case v1::JOB_STATE_REPLANNING:
      NoteEpochEnded(job, *job.run->ended_at(), now.unix_ns);
      Transition(now, job, to, cause, true);
      job.run->Hear(SilencesOf(now, *job.run, Silent::kOrDeaf));
      React(now, job, job.run->EnterReplanning(now.ns));
      return;
    case v1::JOB_STATE_PAUSED:
      NoteRecovered(job, now.unix_ns);
      NoteEpochEnded(job, *job.run->ended_at(), now.unix_ns);
      Transition(now, job, to, cause, true);
      job.run->Hear(SilencesOf(now, *job.run, Silent::kOrDeaf));
      React(now, job, job.run->EnterPaused());
      return;
    default:
      GP_CHECK(false, "job {}: a run moves it to {}", job.name(), JobStateName(to));
  }
}

// Its run is over, before its first epoch or to go on elsewhere; the next one begins with other workers.
void Coordinator::BeginAgain(Now now, Job& job, const std::string& cause) {
  if (job.state() == v1::JOB_STATE_PLANNING) {
    Emit(StopPlanning{job.name(), job.run->incarnation()});
  }
  if (job.run->epoch().has_value()) {
    NoteEpochEnded(job, job.run->reached(), now.unix_ns);
  }
  NoteUnlisted(job);
  if (job.run->progressed()) {
    job.before = job.run->nodes();
  }
  const std::vector<NodeMessage> stops = job.run->StopAll("the job begins again");
  Transition(now, job, v1::JOB_STATE_PENDING, cause, true);
  for (const NodeMessage& stop : stops) {
    SendToNode(stop);
  }
  NoteStrays(now, job);
  job.past = std::move(job.run->iterations());
  job.resumable = job.run->resumable();
  job.run.reset();
  job.planning = job.return_due = false;
  schedule_ = true;
}

void Coordinator::Plan(Now now, Job& job) {
  const Allocation& allocation = job.run->allocation();
  absl::StatusOr<ClusterSpec> cluster = ClusterOf(allocation);
  absl::Status status = cluster.status();
  JobSpec spec = job.run->choices();
  if (status.ok()) {
    const LinkTable links = LinkTable::Of(membership_.nodes());
    spec = Pinned(job, links);
    const std::vector<std::string> sites = allocation.site_names();
    // With sites left to the planner it is for the planner to say which links it needs.
    if (!spec.placement.sites.empty()) {
      status = links.CheckPipeline(spec, spec.placement.sites);
    }
    cluster->links = links.SpecsFor(sites, measured_);
    if (KeepsDeviceTime(job.options)) {
      MarkKeptTime(allocation, membership_.nodes(), links, *cluster);
    }
  }
  if (!status.ok()) {
    Move(now, job, v1::JOB_STATE_FAILED, std::string(status.message()));
    return;
  }
  PlanningInput input{.job = std::move(spec), .run = job.options, .cluster = *std::move(cluster)};
  if (const std::optional<CheckpointIdentity> from = job.run->resume_from(); from.has_value()) {
    input.job.search.sequence_length = {from->sequence_length};  // with another, samples would be skipped or repeated
  }
  if (!job.run->profile().empty()) {
    input.profile = job.run->profile();
  }
  job.planning = true;
  Emit(StartPlanning{job.name(), job.run->incarnation(), std::move(input)});
}

void Coordinator::Finish(Now now, Job& job, JobState to, const std::string& cause) {
  const bool planning = job.state() == v1::JOB_STATE_PLANNING;
  SetMeasured(job);
  NoteEpochEnded(job, job.iterations().next(), now.unix_ns);
  Transition(now, job, to, cause, true);
  if (job.run == nullptr) {
    return;
  }
  if (planning) {
    Emit(StopPlanning{job.name(), job.run->incarnation()});
  }
  for (NodeMessage& message : job.run->StopAll(cause)) {
    SendToNode(std::move(message));
  }
  NoteStrays(now, job);
  job.past = std::move(job.run->iterations());
  job.run.reset();
  KeepPast(job.name());
  schedule_ = true;
}

void Coordinator::KeepPast(const std::string& name) {
  std::erase(finished_, name);
  finished_.push_back(name);
  if (finished_.size() > options_.finished_logs_kept) {
    if (Job* oldest = FindJob(finished_.front()); oldest != nullptr && oldest->run == nullptr) {
      oldest->past.Forget();
      oldest->past_stored = true;
    }
    finished_.erase(finished_.begin());
  }
}

// Jobs in order of submission take what they need as soon as it is there; one that waits does not hold up the others.
void Coordinator::Schedule(Now now) {
  wanted_links_.clear();
  std::set<NodeKey> promised;  // to earlier ones, which wait for workers of theirs to end there
  for (Job* job : InOrder()) {
    if (job->state() != v1::JOB_STATE_PENDING || now.ns < job->again_at_ns) {
      continue;
    }
    job->again_at_ns = 0;
    AllocationDecision decision = Decide(*job, promised);
    if (!decision.allocation.has_value()) {
      if (std::ranges::any_of(job->home, [&](const NodeKey& node) { return HasStray(*job, node); })) {
        promised.insert(job->home.begin(), job->home.end());
      }
      job->links_by_ns = Job::kNoDeadlineNs;
      if (job->waiting_for != decision.reason) {
        job->waiting_for = decision.reason;
        Log(LogLevel::kInfo, job->name(), decision.reason);
      }
      continue;
    }
    if (!LinksReady(now, *job, *decision.allocation)) {
      continue;
    }
    job->waiting_for.clear();
    job->needs_home = false;
    job->run = std::make_unique<JobRun>(job->spec, job->options, *std::move(decision.allocation), ++next_incarnation_,
                                        options_.version, options_.run);
    job->run->RestoreLosses(job->detail, now);
    if (job->has_trained()) {
      job->run->GoOnFrom(TakeEarlier(*job));
    }
    next_incarnation_ = job->run->last_incarnation();
    Transition(now, *job, v1::JOB_STATE_PROFILING, decision.reason, false);
    for (NodeMessage& message : job->run->EnterProfiling(now.ns)) {
      SendToNode(std::move(message));
    }
  }
}

std::vector<NodeOffer> Coordinator::Offers(const Job* own) const {
  std::vector<const Job*> running;
  for (const auto& [name, job] : jobs_) {
    if (job->run != nullptr && job.get() != own) {
      running.push_back(job.get());
    }
  }
  std::vector<NodeOffer> offers;
  for (const auto& [key, node] : membership_.nodes()) {
    if (!node.usable() || drained_.contains(key.site)) {
      continue;
    }
    NodeOffer& offer = offers.emplace_back(
        NodeOffer{.key = key, .spec = node.spec, .free = {}, .holders = {}, .orphan_grace_ns = node.orphan_grace_ns});
    for (int32_t device = 0; device < node.spec.devices(); ++device) {
      const WorkerKey worker{key.site, key.node, device};
      const auto holder = std::ranges::find_if(running, [&](const Job* job) { return job->run->Has(worker); });
      if (holder != running.end()) {
        offer.holders.insert((*holder)->name());
      } else if (const Stray* stray = strays_.Find(worker); stray != nullptr) {
        offer.holders.insert(
            fmt::format("{} (over; its worker {} is not known to have ended)", stray->job, DisplayName(worker)));
      } else {
        offer.free.push_back(device);
      }
    }
  }
  return offers;
}

NodeSilence Coordinator::SilenceOf(Now now, const JobRun& run, const NodeKey& key) const {
  const NodeRecord* node = membership_.Find(key);
  // An agent may have been restarted with another configuration than its workers were started with.
  const int64_t grace_ns = std::max(run.OrphanGraceNs(key), node == nullptr ? 0 : node->orphan_grace_ns);
  // The worker's last word may be an agent's that lived on for a heartbeat's interval.
  return {.node = key,
          .silent_ns = now.ns - (node == nullptr ? started_ns_ : node->last_heard_ns),
          .grace_ns = grace_ns == 0 ? options_.default_orphan_grace_ns : grace_ns,
          .margin_ns = std::max(options_.orphan_margin_ns, 2 * options_.heartbeat_interval_ns)};
}

std::vector<NodeSilence> Coordinator::SilencesOf(Now now, const JobRun& run, Silent which) const {
  std::vector<NodeSilence> silences;
  for (const NodeKey& key : run.nodes()) {
    const NodeRecord* node = membership_.Find(key);
    if (node == nullptr || !node->session.has_value() || node->health != NodeHealth::kAlive ||
        (which == Silent::kOrDeaf && !node->hears)) {
      silences.push_back(SilenceOf(now, run, key));
    }
  }
  return silences;
}

// All of its workers: one that is stopped by an agent that is well is one for no longer than a heartbeat.
void Coordinator::NoteStrays(Now now, const Job& job) {
  for (const auto& [worker, seen] : job.run->Crew()) {
    const NodeKey key = worker.node_key();
    const NodeRecord* node = membership_.Find(key);
    strays_.Add(worker, {.job = job.name(),
                         .run = job.run->incarnation(),
                         .incarnation = job.run->IncarnationOf(worker),
                         .agent = !seen             ? 0
                                  : node == nullptr ? Stray::kUnknownAgent
                                                    : node->incarnation,
                         .order = orders_[key].last(),
                         .grace_ns = job.run->GraceNs(SilenceOf(now, *job.run, key), false),
                         .noted_ns = now.ns,
                         .alone_ns = now.ns});
  }
}

bool Coordinator::AllConnected(const JobRun& run) const {
  return std::ranges::all_of(run.nodes(), [&](const NodeKey& key) {
    const NodeRecord* node = membership_.Find(key);
    return node != nullptr && node->usable();
  });
}

}  // namespace geopipe
