// Manages jobs: their states, their runs, and the devices that they are given.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/cluster/allocation.h"
#include "coordinator/core/coordinator.h"
#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/model/groups/node_groups.h"
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

// Marks the sites and links where messages between devices whose time is kept take none of this run's own time: inside
// a host, over memory and over links that are rehearsed.
void MarkKeptTime(const Allocation& allocation, const std::map<NodeKey, NodeRecord>& nodes, const LinkTable& links,
                  ClusterSpec& cluster) {
  std::map<std::string_view, std::string> hosts;
  for (const AllocatedSite& site : allocation.sites) {
    hosts[site.name] = HostOf(site, nodes);
  }
  for (SiteSpec& site : cluster.sites) {
    site.keeps_time = !hosts[SiteOfGroup(site.name)].empty();
  }
  for (LinkSpec& link : cluster.links) {
    const std::string a(SiteOfGroup(link.site_a));
    const std::string b(SiteOfGroup(link.site_b));
    link.keeps_time = !hosts[a].empty() && hosts[a] == hosts[b] && (a == b || links.Shaped(a, b));
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

void Coordinator::Transition(Now now, Job& job, JobState to, const std::string& cause, bool outcome_changed) {
  const JobState from = job.state();
  AddTransition(job, to, cause, now.unix_ns);
  const int last = job.detail.transitions_size() - 1;
  PersistTransition persist{.job = job.name(), .sequence = last, .transition = job.detail.transitions(last)};
  if (outcome_changed) {
    persist.outcome = OutcomeOf(job);
  }
  if (job.run != nullptr) {
    persist.record = RecordOf(job);
    persist.progress = ledger_.Take(now, job);
  }
  outbox_.Emit(std::move(persist));
  outbox_.Log(to == v1::JOB_STATE_FAILED ? LogLevel::kError : LogLevel::kInfo, job.name(), "{} -> {}: {}",
              JobStateName(from), JobStateName(to), cause);
  outbox_.NoteChanged(job.name());
}

void Coordinator::Drive(Now now, Job& job) {
  constexpr int kMaxSteps = 64;
  if (job.run == nullptr && !job.closing.empty() && !IsFinal(job.state())) {
    Finish(now, job, v1::JOB_STATE_CANCELLED, job.closing);  // nothing was done since its last checkpoint
  }
  for (int steps = 0; job.run != nullptr; ++steps) {
    GP_CHECK(steps < kMaxSteps, "job {} decides without end in {}", job.name(), JobStateName(job.state()));
    job.run->See({.leaving = placement_.LeftBy(*job.run),
                  .exit = job.exit,
                  .closing = job.closing,
                  .unfit_since_ns = job.unfit_since_ns});
    std::optional<Reaction> reaction = job.run->Step(now.ns, next_incarnation_);
    if (!reaction.has_value()) {
      break;
    }
    React(now, job, *std::move(reaction));
  }
  job.exit = {};
  if (job.run != nullptr) {
    agents_.Send(job.run->TakeDueOrders(now.ns, [&] { return links_.Declared(); }));
  }
}

// A job that stays at nodes that go down has at least its state in a checkpoint by then.
void Coordinator::SaveBefore(Now now, Job& job, const std::set<NodeKey>& going) {
  const bool was_asked = std::ranges::includes(job.saved_for, going);
  job.saved_for = was_asked ? going : job.saved_for;
  if (going.empty() || (was_asked && (now.ns < job.save_again_ns || job.run->Saves(job.saves_before)))) {
    return;
  }
  Reaction reaction;
  if (const absl::StatusOr<int64_t> iteration = job.run->Checkpoint(reaction); iteration.ok()) {
    job.saved_for = going;
    job.saves_before = *iteration;
    job.save_again_ns = now.ns + 5'000'000'000;  // where it comes to nothing
    outbox_.Log(LogLevel::kInfo, job.name(), "a checkpoint of iteration {} is asked for before {} can go down",
                *iteration, DisplayNames(going));
    React(now, job, std::move(reaction));
  }
}

void Coordinator::React(Now now, Job& job, Reaction reaction) {
  if (reaction.unlisted || reaction.changed) {  // nodes may be about to remove what is listed no more
    NoteCheckpoints(job, nullptr, now.unix_ns);
    outbox_.Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
  }
  if (!reaction.log.empty()) {
    outbox_.Log(LogLevel::kInfo, job.name(), reaction.log);
  }
  agents_.Send(std::move(reaction.sends));
  ledger_.Note(job);
  NoteTroubles(now, job, reaction);
  NoteLosses(now, job, reaction);
  NoteSaving(now, job, reaction);
  if (reaction.iterations_finished > 0) {
    outbox_.NoteChanged(job.name());
    IterationsFinished finished{.job = job.name(), .tokens_per_iteration = TokensPerIteration(job), .iterations = {}};
    const IterationLog& log = job.iterations();
    for (int64_t i = std::max(log.next() - reaction.iterations_finished, log.oldest()); i < log.next(); ++i) {
      finished.iterations.push_back(log.Get(i));
    }
    outbox_.Emit(std::move(finished));
  }
  NoteNewEvaluations(job);
  links_.OnTraffic(now, reaction.traffic);
  if (reaction.checkpoint.has_value()) {
    job.return_due = true;
    job.detail.clear_checkpoint_trouble();
    NoteCheckpoints(job, &*reaction.checkpoint, now.unix_ns);
    outbox_.Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
    outbox_.Log(LogLevel::kInfo, job.name(), "checkpoint of iteration {}: {} after {}",
                reaction.checkpoint->identity.iteration, HumanBytes(reaction.checkpoint->bytes),
                FormatSeconds(reaction.checkpoint->duration_ns));
  }
  if (reaction.copied.has_value()) {
    NoteCheckpoints(job, nullptr, now.unix_ns);
    outbox_.Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
    outbox_.Log(LogLevel::kInfo, job.name(), "checkpoint of iteration {} is {}", reaction.copied->identity.iteration,
                reaction.copied->is_copied() ? "at other sites as well" : "at the sites that the job stays at");
  }
  if (reaction.loss.has_value()) {
    const bool begins = reaction.change.has_value();
    NoteLoss(job, *reaction.loss, begins, now.unix_ns);
    job.again_at_ns = now.ns + reaction.loss->delay_ns;
    if (!begins) {
      outbox_.Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
      outbox_.Log(LogLevel::kWarning, job.name(), reaction.loss->cause);
    }
  }
  if (reaction.wants_secret) {
    outbox_.Emit(DrawSecret{job.name(), job.run->life().incarnation});
  }
  if (reaction.wants_plan) {
    Plan(now, job);
  }
  if (reaction.stays) {
    NoteStays(now, job);
  }
  if (reaction.change.has_value()) {
    Move(now, job, reaction.change->to, reaction.change->cause);
  }
}

// Adds them to the detail before iterations and transitions that follow them are told.
void Coordinator::NoteNewEvaluations(Job& job) {
  std::vector<v1::EvaluationSummary> evaluations = job.run->TakeEvaluations();
  if (evaluations.empty()) {
    return;
  }
  for (const v1::EvaluationSummary& each : evaluations) {
    if (each.incomplete()) {
      outbox_.Log(LogLevel::kWarning, job.name(), "the report of the evaluation after {} iterations is lost",
                  each.iteration());
    }
  }
  NoteEvaluations(job, std::move(evaluations));
  outbox_.NoteChanged(job.name());
  outbox_.Emit(PersistRecord{job.name(), RecordOf(job), OutcomeOf(job)});
}

void Coordinator::Move(Now now, Job& job, JobState to, const std::string& cause) {
  if (to == v1::JOB_STATE_PENDING || (to == v1::JOB_STATE_FAILED && Departures::DoWithoutNewNodes(job))) {
    BeginAgain(now, job, cause);
    return;
  }
  if (IsFinal(to)) {
    Finish(now, job, to, cause);
    return;
  }
  const JobLife& life = job.run->life();
  switch (to) {
    case v1::JOB_STATE_PLANNING:
      std::ranges::for_each(life.nodes, [&](const NodeKey& node) { membership_.EndTrouble(node); });
      NoteCheckpoints(job, nullptr, now.unix_ns);  // nodes have reported their folders
      *job.detail.mutable_profile() = ToProto(life.profile);
      break;
    case v1::JOB_STATE_DEPLOYING:
      job.home.insert(life.nodes.begin(), life.nodes.end());
      NoteEpochBegun(job, BeginCause(*life.epoch, job.state()), now.unix_ns);
      outbox_.AskToSchedule();  // idle devices are free again
      break;
    case v1::JOB_STATE_RECOVERING:
      NoteEpochEnded(job, job.run->crew().reached, now.unix_ns);
      break;
    case v1::JOB_STATE_RUNNING:
      std::ranges::for_each(life.nodes, [&](const NodeKey& node) { membership_.EndTrouble(node); });
      NoteCheckpoints(job, nullptr, now.unix_ns);
      [[fallthrough]];
    case v1::JOB_STATE_PAUSED:
    case v1::JOB_STATE_REPLANNING:
      NoteRecovered(job, now.unix_ns);
      if (to != v1::JOB_STATE_RUNNING) {
        NoteEpochEnded(job, *life.ended_at, now.unix_ns);
      }
      break;
    default:
      GP_CHECK(false, "job {}: a run moves it to {}", job.name(), JobStateName(to));
  }
  Transition(now, job, to, cause, true);
  agents_.Send(job.run->Enter(to, now.ns));
  Listen(now, *job.run);
}

// Begins the job again with other workers: its run is over, before its first epoch or to go on elsewhere.
void Coordinator::BeginAgain(Now now, Job& job, const std::string& cause) {
  if (job.state() == v1::JOB_STATE_PLANNING) {
    outbox_.Emit(StopPlanning{job.name(), job.run->life().incarnation});
  }
  if (const std::optional<Epoch>& epoch = job.run->life().epoch; epoch.has_value()) {
    NoteEpochEnded(job, job.run->crew().reached, now.unix_ns);
    job.detail.mutable_summary()->set_epoch(epoch->number);  // it may be a later one than that of an older store
  }
  NoteCheckpoints(job, nullptr, now.unix_ns);
  NoteMemory(job);
  if (job.run->life().progressed) {
    job.before = job.run->life().nodes;
  }
  Transition(now, job, v1::JOB_STATE_PENDING, cause, true);
  job.last_worker = LastWorkerOf(job);
  if (job.run->crew().later.empty()) {
    StopAll(job, "the job begins again");
    NoteStrays(now, job);
  } else {
    job.last_stored_worker = job.last_worker;
    unknown_.LeaveAlone(now, job);
  }
  job.past = std::move(job.run->told().iterations);
  job.checkpoints = job.run->life().checkpoints;
  jobs_.SetRun(job, nullptr);
  job.return_due = false;
  outbox_.AskToSchedule();
}

void Coordinator::Plan(Now now, Job& job) {
  const Allocation& allocation = job.run->life().allocation;
  absl::StatusOr<AllocatedCluster> allocated = ClusterOf(allocation);
  absl::Status status = allocated.status();
  JobSpec spec = job.run->life().choices;
  if (status.ok()) {
    const LinkTable links = links_.Declared();
    spec = placement_.Pinned(job, links);
    const std::vector<std::string> sites = allocation.site_names();
    // The planner checks the links itself when the sites are left to it.
    if (!spec.placement.sites.empty()) {
      status = links.CheckPipeline(spec, spec.placement.sites);
    }
    ClusterSpec& cluster = allocated->cluster;
    cluster.links = LinksOfGroups(cluster.sites, links.SpecsFor(sites, links_.measured()));
    if (KeepsDeviceTime(job.options)) {
      MarkKeptTime(allocation, membership_.nodes(), links, cluster);
    }
    const auto group =
        std::ranges::find_if(cluster.sites, [](const SiteSpec& site) { return SiteOfGroup(site.name) != site.name; });
    if (job.options.explicit_costs.has_value() && group != cluster.sites.end()) {
      status = absl::FailedPreconditionError(
          fmt::format("the nodes of site {} have different devices, and explicit costs do not say which stage is on "
                      "which; put the nodes in different sites",
                      SiteOfGroup(group->name)));
    }
  }
  if (!status.ok()) {
    Move(now, job, v1::JOB_STATE_FAILED, std::string(status.message()));
    return;
  }
  PlanningInput input{.job = std::move(spec), .run = job.options, .cluster = std::move(allocated->cluster)};
  input.groups = std::move(allocated->nodes);
  if (const auto& from = job.run->life().checkpoints.resumable; !from.empty()) {
    input.job.search.sequence_length = {from.back().sequence_length};  // another would skip or repeat samples
  }
  if (!job.run->life().profile.empty()) {
    input.profile = ProfileOfGroups(job.run->life().profile, allocation, input.groups);
  }
  outbox_.Emit(StartPlanning{job.name(), job.run->life().incarnation, std::move(input)});
}

void Coordinator::Finish(Now now, Job& job, JobState to, const std::string& cause) {
  const bool planning = job.state() == v1::JOB_STATE_PLANNING;
  SetMeasured(job);
  NoteEpochEnded(job, job.iterations().next(), now.unix_ns);
  Transition(now, job, to, cause, true);
  outbox_.AskToSchedule();  // nodes may be promised to it
  if (job.run == nullptr) {
    return;
  }
  if (planning) {
    outbox_.Emit(StopPlanning{job.name(), job.run->life().incarnation});
  }
  StopAll(job, cause);
  NoteStrays(now, job);
  job.past = std::move(job.run->told().iterations);
  job.last_worker = LastWorkerOf(job);
  jobs_.SetRun(job, nullptr);
  jobs_.KeepPast(job);
}

void Coordinator::StopAll(const Job& job, const std::string& reason) {
  std::vector<WorkerKey> workers;
  for (const auto& [key, post] : job.run->life().posts) {
    if (post.duty != Post::Duty::kStopped) {
      workers.push_back(key);
    }
  }
  agents_.Send(StopMessages(job.run->life(), workers, options_.run.stop_grace_ns, reason));
}

// Jobs take the devices that they need, in order of submission, as soon as these are free; one that waits does not hold
// up the others. A job that has just come changes nothing for those before it.
void Coordinator::Schedule(Now now, const std::string& only) {
  Job* const newcomer = only.empty() ? nullptr : jobs_.Find(only);
  if (newcomer == nullptr) {
    links_.ForgetWanted();
    promised_.clear();
  }
  Placement::Market market = placement_.Open();
  for (Job* job : newcomer == nullptr ? jobs_.InOrder() : std::vector{newcomer}) {
    if (job->state() != v1::JOB_STATE_PENDING || now.ns < job->again_at_ns) {
      continue;
    }
    job->again_at_ns = 0;
    AllocationDecision decision = placement_.Decide(*job, promised_, market);
    if (!decision.allocation.has_value()) {
      if (std::ranges::any_of(job->home, [&](const NodeKey& node) { return placement_.EndsSoon(*job, node); })) {
        promised_.insert(job->home.begin(), job->home.end());
      }
      job->links_by_ns = Job::kNoDeadlineNs;
    }
    const std::string awaited =
        decision.allocation.has_value() ? links_.AwaitedBy(now, *job, *decision.allocation) : decision.reason;
    if (!awaited.empty()) {
      if (std::exchange(job->waiting_for, awaited) != awaited) {
        outbox_.Log(LogLevel::kInfo, job->name(), awaited);
      }
      continue;
    }
    job->waiting_for.clear();
    job->needs_home = false;
    auto run = std::make_unique<JobRun>(job->spec, job->options, *std::move(decision.allocation), ++next_incarnation_,
                                        options_.version, options_.run);
    run->RestoreHistory(job->detail, now);
    if (job->has_trained()) {
      run->GoOnFrom(EarlierOf(*job), std::move(job->past));
    } else if (job->past.next() > 0) {
      run->GoOnAfter(std::move(job->past));
    }
    jobs_.SetRun(*job, std::move(run));
    next_incarnation_ = job->run->life().last_incarnation();
    Transition(now, *job, v1::JOB_STATE_PROFILING, decision.reason, false);
    job->run->Enter(v1::JOB_STATE_PROFILING, now.ns);
    market = placement_.Open();
    Drive(now, *job);
  }
}

NodeSilence Coordinator::SilenceOf(Now now, const JobRun& run, const NodeKey& key) const {
  const NodeRecord* node = membership_.Find(key);
  // An agent may have been restarted with another configuration than its workers were started with.
  const int64_t grace_ns =
      std::max(run.life().NodeOf(key).orphan_grace_ns, node == nullptr ? 0 : node->orphan_grace_ns);
  // The worker's last word may be an agent's that lived on for a heartbeat's interval.
  return {.node = key,
          .is_silent = node == nullptr || !node->well(),
          .silent_ns = now.ns - (node == nullptr ? started_ns_ : node->last_heard_ns),
          .grace_ns = grace_ns == 0 ? options_.default_orphan_grace_ns : grace_ns,
          .margin_ns = std::max(options_.orphan_margin_ns, 2 * options_.heartbeat_interval_ns)};
}

void Coordinator::Listen(Now now, JobRun& run) const {
  std::vector<NodeSilence> silences;
  for (const NodeKey& key : run.life().nodes) {
    const NodeRecord* node = membership_.Find(key);
    NodeSilence silence = SilenceOf(now, run, key);
    if (silence.is_silent || !node->hears) {
      silences.push_back(std::move(silence));
    }
  }
  run.Hear(std::move(silences));
}

// Notes all workers of the job as strays; one that a healthy agent stops is a stray for no longer than a heartbeat
// interval.
void Coordinator::NoteStrays(Now now, const Job& job) {
  for (const auto& [worker, facts] : job.run->crew().workers) {
    if (!job.run->life().Has(worker) || facts.stage == WorkerFacts::Stage::kEnded) {
      continue;
    }
    if (const Stray* known = strays_.Find(worker); known != nullptr && known->unknown) {
      continue;  // it has the device, so this one has ended
    }
    const NodeKey key = worker.node_key();
    const NodeRecord* node = membership_.Find(key);
    strays_.Add(worker, {.job = job.name(),
                         .run = job.run->life().incarnation,
                         .incarnation = facts.worker.incarnation,
                         .agent = facts.sight == WorkerFacts::Sight::kUnseen ? 0
                                  : node == nullptr                          ? Stray::kUnknownAgent
                                                                             : node->incarnation,
                         .order = agents_.LastOrder(key),
                         .grace_ns = job.run->At(now.ns).GraceNs(SilenceOf(now, *job.run, key), false),
                         .noted_ns = now.ns,
                         .alone_ns = now.ns});
  }
}

}  // namespace geopipe
