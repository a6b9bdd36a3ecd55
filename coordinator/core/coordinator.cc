#include "coordinator/core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/allocation.h"
#include "optimizer/base/check.h"

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

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, std::vector<v1::JobDetail> stored)
    : options_(std::move(options)),
      membership_(options_.version, options_.membership),
      probing_(options_.probing),
      next_incarnation_(options_.incarnation) {
  for (v1::JobDetail& detail : stored) {
    std::string name = detail.summary().name();
    jobs_[name] = RestoreJob(next_sequence_++, std::move(detail));
  }
}

Effects Coordinator::Start(Now now) {
  for (Job* job : InOrder()) {
    if (!IsFinal(job->state())) {
      Transition(now, *job, v1::JOB_STATE_FAILED, "the coordinator restarted", true);
    }
  }
  return std::exchange(effects_, {});
}

Effects Coordinator::Step(Now now, Event event) {
  if (!std::holds_alternative<PersistFailed>(event)) {
    undo_.reset();
  }
  std::visit([&](auto& each) { On(now, each); }, event);
  if (std::holds_alternative<ApplyJob>(event)) {
    return std::exchange(effects_, {});
  }
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
  return std::exchange(effects_, {});
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
    unsent_.erase(change.node);
    NoteLostNode(now, change.node);
    for (Job* job : InOrder()) {
      if (job->run != nullptr) {
        React(now, *job, job->run->OnNodeFailed(now.ns, change.node, change.silent_ns));
      }
    }
  }
  for (Job* job : InOrder()) {
    if (job->run != nullptr) {
      React(now, *job, job->run->OnTick(now.ns, SomeNodeSilent(*job->run)));
    }
    // It has waited long enough for its links.
    schedule_ = schedule_ || (job->state() == v1::JOB_STATE_PENDING && now.ns >= job->links_by_ns);
  }
  if (now.ns >= probing_.next_ns()) {
    CarryOut(now, probing_.OnTick(now.ns));
    probe_ = true;
  }
}

void Coordinator::On(Now now, PlannerDone& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || job->run == nullptr || job->run->incarnation() != event.incarnation ||
      job->state() != v1::JOB_STATE_PLANNING) {
    return;
  }
  const uint64_t epoch = job->detail.summary().epoch() + 1;
  absl::Status status = event.result.status();
  if (status.ok()) {
    status = job->run->SetPlan(&*event.result, std::move(event.secret), epoch);
  }
  if (!status.ok()) {
    job->detail.mutable_summary()->set_cause_code(status.raw_code());
    Finish(now, *job, v1::JOB_STATE_FAILED, fmt::format("no plan: {}", std::string(status.message())));
    return;
  }
  SetPlanned(*job, *event.result, epoch);
  Transition(now, *job, v1::JOB_STATE_DEPLOYING, PlanSentence(*event.result), true);
  for (NodeMessage& message : job->run->EnterDeploying(now.ns, *event.result, LinkTable::Of(membership_.nodes()))) {
    SendToNode(std::move(message));
  }
  schedule_ = true;  // idle devices are free again
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
  Emit(std::move(persist));
  Log(to == v1::JOB_STATE_FAILED ? LogLevel::kError : LogLevel::kInfo, job.name(),
      fmt::format("{} -> {}: {}", JobStateName(from), JobStateName(to), cause));
  changed_.insert(job.name());
}

void Coordinator::React(Now now, Job& job, Reaction reaction) {
  for (NodeMessage& message : reaction.sends) {
    SendToNode(std::move(message));
  }
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
  if (reaction.change.has_value()) {
    Move(now, job, reaction.change->to, reaction.change->cause);
  }
}

void Coordinator::Move(Now now, Job& job, JobState to, const std::string& cause) {
  if (IsFinal(to)) {
    Finish(now, job, to, cause);
    return;
  }
  Transition(now, job, to, cause, false);
  if (to == v1::JOB_STATE_PLANNING) {
    Plan(now, job);
  } else if (to == v1::JOB_STATE_RUNNING) {
    React(now, job, job.run->EnterRunning(now.ns));
  }
}

void Coordinator::Plan(Now now, Job& job) {
  job.run->EnterPlanning(now.ns);
  const Allocation& allocation = job.run->allocation();
  absl::StatusOr<ClusterSpec> cluster = ClusterOf(allocation);
  absl::Status status = cluster.status();
  if (status.ok()) {
    const LinkTable links = LinkTable::Of(membership_.nodes());
    const std::vector<std::string> sites = allocation.site_names();
    // With sites left to the planner it is for the planner to say which links it needs.
    if (!job.spec.placement.sites.empty()) {
      status = links.CheckPipeline(job.spec, sites);
    }
    cluster->links = links.SpecsFor(sites, measured_);
    if (KeepsDeviceTime(job.options)) {
      MarkKeptTime(allocation, membership_.nodes(), links, *cluster);
    }
  }
  if (!status.ok()) {
    Finish(now, job, v1::JOB_STATE_FAILED, std::string(status.message()));
    return;
  }
  PlanningInput input{.job = job.spec, .run = job.options, .cluster = *std::move(cluster)};
  if (!job.run->profile().empty()) {
    input.profile = job.run->profile();
  }
  Emit(StartPlanning{job.name(), job.run->incarnation(), std::move(input)});
}

void Coordinator::Finish(Now now, Job& job, JobState to, const std::string& cause) {
  const bool planning = job.state() == v1::JOB_STATE_PLANNING;
  SetMeasured(job);
  Transition(now, job, to, cause, true);
  if (job.run == nullptr) {
    return;
  }
  if (planning) {
    Emit(StopPlanning{job.name(), job.run->incarnation()});
  }
  for (NodeMessage& message : job.run->StopAll(cause)) {
    // Nothing else is left to be said to an agent whose stream is down.
    std::erase_if(unsent_[message.node], [&](const v1::ConnectResponse& unsent) {
      return unsent.start_workers().job() == job.name() || unsent.command().worker().job() == job.name();
    });
    SendToNode(std::move(message));
  }
  job.past = job.run->TakeIterations();
  job.run.reset();
  finished_.push_back(job.name());
  if (finished_.size() > options_.finished_logs_kept) {
    if (Job* oldest = FindJob(finished_.front()); oldest != nullptr && oldest->run == nullptr) {
      oldest->past.Forget();
    }
    finished_.erase(finished_.begin());
  }
  schedule_ = true;
}

// Jobs in order of submission take what they need as soon as it is there; one that waits does not hold up the others.
void Coordinator::Schedule(Now now) {
  wanted_links_.clear();
  for (Job* job : InOrder()) {
    if (job->state() != v1::JOB_STATE_PENDING) {
      continue;
    }
    AllocationDecision decision = DecideAllocation(job->spec, job->options, Offers());
    if (!decision.allocation.has_value()) {
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
    Transition(now, *job, v1::JOB_STATE_PROFILING, decision.reason, false);
    job->run = std::make_unique<JobRun>(job->spec, job->options, *std::move(decision.allocation), ++next_incarnation_,
                                        options_.version, options_.run);
    for (NodeMessage& message : job->run->EnterProfiling(now.ns)) {
      SendToNode(std::move(message));
    }
  }
}

std::vector<NodeOffer> Coordinator::Offers() const {
  std::vector<const Job*> running;
  for (const auto& [name, job] : jobs_) {
    if (job->run != nullptr) {
      running.push_back(job.get());
    }
  }
  std::vector<NodeOffer> offers;
  for (const auto& [key, node] : membership_.nodes()) {
    if (!node.usable()) {
      continue;
    }
    NodeOffer& offer = offers.emplace_back(NodeOffer{.key = key, .spec = node.spec, .free = {}, .holders = {}});
    for (int32_t device = 0; device < node.spec.devices(); ++device) {
      const WorkerKey worker{key.site, key.node, device};
      const auto holder = std::ranges::find_if(running, [&](const Job* job) { return job->run->Has(worker); });
      if (holder == running.end()) {
        offer.free.push_back(device);
      } else {
        offer.holders.insert((*holder)->name());
      }
    }
  }
  return offers;
}

bool Coordinator::SomeNodeSilent(const JobRun& run) const {
  return std::ranges::any_of(run.nodes(), [&](const NodeKey& key) {
    const NodeRecord* node = membership_.Find(key);
    return node == nullptr || !node->session.has_value() || node->health != NodeHealth::kAlive;
  });
}

}  // namespace geopipe
