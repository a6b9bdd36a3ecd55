#include "coordinator/core/job_run/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/core/run/worker_commands.h"
#include "optimizer/model/patience.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr size_t kMaxReasonBytes = 8192;

// Time to read or send the bytes at a pessimistic rate.
int64_t SlowNs(int64_t bytes) {
  constexpr double kSlowBytesPerSecond = 2e7;
  return static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / kSlowBytesPerSecond);
}

}  // namespace

int64_t EndIteration(const JobSpec& job, const RunOptions& run) {
  return run.stop_after_iterations > 0 ? std::min(run.stop_after_iterations, job.training.iterations)
                                       : job.training.iterations;
}

std::string DoneSentence(int64_t iterations) {
  return iterations == 1 ? "its one iteration is done" : fmt::format("all {} iterations are done", iterations);
}

JobRun::JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation,
               std::string version, const JobRunLimits& limits)
    : job_(job),
      run_(run),
      allocation_(std::move(allocation)),
      incarnation_(incarnation),
      version_(std::move(version)),
      limits_(limits),
      restarts_(limits.restarts_per_hour, incarnation) {
  for (const NodeKey& node : allocation_.nodes()) {
    nodes_.insert(node);
  }
  choices_ = job_;
  uint64_t number = incarnation;
  for (const WorkerKey& worker : allocation_.workers()) {
    workers_[worker].incarnation = ++number;
  }
}

uint64_t JobRun::last_incarnation() const {
  uint64_t last = incarnation_;
  for (const auto& [key, worker] : workers_) {
    last = std::max(last, worker.incarnation);
  }
  return last;
}

// --- Entering states ----------------------------------------------------------------------------------------------

std::vector<NodeMessage> JobRun::EnterProfiling(int64_t now_ns) {
  state_ = v1::JOB_STATE_PROFILING;
  SetDeadline(now_ns);
  std::vector<NodeMessage> sends;
  for (const auto& [key, worker] : workers_) {
    sends.push_back(Start(key));
  }
  return sends;
}

void JobRun::EnterPlanning() {
  state_ = v1::JOB_STATE_PLANNING;
  profile_ = rounds_.profile();
  deadline_ns_ = kNoDeadlineNs;
}

void JobRun::OnPlanningBegun(int64_t now_ns) {
  if (state_ == v1::JOB_STATE_PLANNING) {
    deadline_ns_ = now_ns + job_.search.time_budget_ns + limits_.planning_margin_ns;
  }
}

const AllocatedNode* JobRun::NodeAt(std::string_view site, int32_t node) const {
  const auto found = std::ranges::find(allocation_.sites, site, &AllocatedSite::name);
  return found == allocation_.sites.end() || node < 0 || node >= std::ssize(found->nodes) ? nullptr
                                                                                          : &found->nodes[node];
}

absl::Status JobRun::SetPlan(PlanResult* result, std::string secret) {
  Plan& plan = result->plan;
  std::vector<EpochMember> members;
  std::set<WorkerKey> used;
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    DevicePlace& place = plan.devices[rank];
    const AllocatedNode* node = NodeAt(plan.SiteOfRank(rank), place.node);
    if (node == nullptr || place.device < 0 || place.device >= std::ssize(node->devices)) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {} of node {} of site {}, which the job does not have", rank,
                      place.device, place.node, plan.SiteOfRank(rank)));
    }
    place.device = node->devices[place.device];
    WorkerKey key{plan.SiteOfRank(rank), node->spec.node(), place.device};
    if (!used.insert(key).second) {
      return absl::InternalError(
          fmt::format("the plan puts rank {} on device {}, which is not free", rank, DisplayName(key)));
    }
    members.push_back({key, workers_.at(key).incarnation});
  }
  for (IdleDevices& idle : plan.idle) {
    const AllocatedNode* node = NodeAt(idle.site, idle.node);
    for (int32_t& device : idle.devices) {
      device = node != nullptr && device < std::ssize(node->devices) ? node->devices[device] : device;
    }
  }
  if (epochs_before_ > 0) {
    iterations_.GoOnWith(plan.grid.size());
  } else {
    iterations_.BeginAt(plan.grid.size(), FirstIteration(), limits_.max_iterations_kept);
  }
  memory_ = {};
  plan_ = std::make_shared<PlanResult>(*result);
  members_ = std::move(members);
  secret_ = std::move(secret);
  deadline_ns_ = kNoDeadlineNs;
  return absl::OkStatus();
}

std::vector<NodeMessage> JobRun::EnterDeploying(int64_t now_ns, const LinkTable& links) {
  state_ = v1::JOB_STATE_DEPLOYING;
  progress_ns_ = now_ns;  // nodes that were silent before have time to return
  SetDeadline(now_ns);
  undriven_.clear();
  std::vector<NodeMessage> sends;
  for (const WorkerKey& key : std::exchange(idle_, {})) {
    sends.push_back(
        {key.node_key(), StopMessage(job_.name, limits_.stop_grace_ns, "the plan has no use for this device",
                                     {key.device}, workers_.at(key).incarnation)});
  }
  for (int32_t rank = 0; rank < std::ssize(members_); ++rank) {
    sends.push_back(Command(members_[rank].worker, PrepareOrder(rank, links)));
  }
  return sends;
}

Reaction JobRun::EnterRunning(int64_t now_ns) {
  state_ = v1::JOB_STATE_RUNNING;
  progress_ns_ = now_ns;
  SetDeadline(now_ns);
  told_ns_ = now_ns;
  return {.change = Over()};
}

Reaction JobRun::EnterPaused() {
  state_ = v1::JOB_STATE_PAUSED;
  deadline_ns_ = kNoDeadlineNs;
  return Decide();
}

std::vector<NodeMessage> JobRun::StopAll(const std::string& reason) const {
  std::vector<NodeMessage> sends;
  for (const auto& [key, worker] : workers_) {
    if (!worker.stopped) {
      sends.push_back({key.node_key(), StopMessage(job_.name, limits_.stop_grace_ns,
                                                   ToUtf8(std::string_view(reason).substr(0, kMaxReasonBytes)),
                                                   {key.device}, worker.incarnation)});
    }
  }
  return sends;
}

// Sorts out workers that are no rank of the plan.
void JobRun::MarkIdle() {
  nodes_.clear();
  for (auto& [key, worker] : workers_) {
    if (RankOf(key) >= 0) {
      nodes_.insert(key.node_key());
    } else if (!std::exchange(worker.stopped, true)) {
      idle_.push_back(key);
    }
  }
}

// --- Time ---------------------------------------------------------------------------------------------------------

int64_t JobRun::SlowestIterationNs() const {
  if (plan_ == nullptr) {
    return 0;
  }
  const auto iteration_ns = static_cast<double>(plan_->prediction.iteration_ns);
  // Several times the iteration, and once the passes, each of which takes a part of an iteration.
  const double passes = job_.evaluates() ? static_cast<double>(job_.evaluation.iterations) : 0;
  return PatienceNs(iteration_ns) + PatienceNs(iteration_ns * passes / 10);
}

int64_t JobRun::ProgressTimeoutNs() const { return std::max(limits_.progress_timeout_ns, SlowestIterationNs()); }

// The same time is in the CommitCommand, for a worker in an epoch or at rest after one.
int64_t JobRun::GraceNs(const NodeSilence& silence, bool rests) const {
  return silence.margin_ns + std::max({silence.grace_ns, SlowestIterationNs(), rests ? limits_.rest_ns : 0});
}

// Reading a checkpoint takes as long as disks and links take; a worker that fetches a file notices by itself when none
// comes.
int64_t JobRun::PrepareLimitNs() const {
  int64_t bytes = 0;
  for (const ListedCheckpoint& each : listed_) {
    bytes = epoch_.has_value() && epoch_->from_checkpoint == each.identity ? each.bytes : bytes;
  }
  return limits_.prepare_timeout_ns + SlowNs(bytes);
}

// Replicas send each other states between connecting and reporting that they have.
int64_t JobRun::CommitLimitNs() const { return limits_.commit_timeout_ns + SlowNs(GivenStateBytes()); }

// Sets the deadline of the state or phase that begins now.
void JobRun::SetDeadline(int64_t now_ns) {
  switch (state_) {
    case v1::JOB_STATE_PROFILING:
      deadline_ns_ = now_ns + (measuring_ ? limits_.profile_timeout_ns : limits_.start_timeout_ns);
      return;
    case v1::JOB_STATE_DEPLOYING:
      deadline_ns_ = now_ns + (rollout_.phase() == PlanRollout::Phase::kPreparing ? PrepareLimitNs() : CommitLimitNs());
      return;
    case v1::JOB_STATE_RUNNING:
      deadline_ns_ = now_ns + ProgressTimeoutNs();
      return;
    case v1::JOB_STATE_RECOVERING:
      deadline_ns_ = std::max(now_ns, recover_at_ns_) + limits_.start_timeout_ns;
      return;
    default:
      deadline_ns_ = kNoDeadlineNs;
      return;
  }
}

void JobRun::Forgive(int64_t pause_ns) {
  if (deadline_ns_ != kNoDeadlineNs) {
    deadline_ns_ += pause_ns;
  }
  recover_at_ns_ += pause_ns;
  progress_ns_ += pause_ns;
  told_ns_ += pause_ns;
  diagnosis_.Forgive(pause_ns);
}

// --- Helpers ------------------------------------------------------------------------------------------------------

int32_t JobRun::RankOf(const WorkerKey& worker) const {
  const auto found = std::ranges::find(members_, worker, &EpochMember::worker);
  return found == members_.end() ? -1 : static_cast<int32_t>(found - members_.begin());
}

std::string JobRun::DeadlineSentence() const {
  switch (state_) {
    case v1::JOB_STATE_PROFILING: {
      if (measuring_) {
        const ProfileCandidate& asked = rounds_.candidate();
        return fmt::format("no measurement of {} within {} from: {}",
                           asked.skip_compute ? fmt::format("messages of {} bytes", asked.message_bytes)
                                              : fmt::format("micro_batch_size {}, sequence_length {}",
                                                            asked.micro_batch_size, asked.sequence_length),
                           FormatSeconds(limits_.profile_timeout_ns), DisplayNames(rounds_.missing()));
      }
      std::vector<WorkerKey> missing;
      for (const auto& [key, worker] : workers_) {
        if (!worker.hello) {
          missing.push_back(key);
        }
      }
      return fmt::format("workers did not start within {}: {}", FormatSeconds(limits_.start_timeout_ns),
                         DisplayNames(missing));
    }
    case v1::JOB_STATE_PLANNING:
      return fmt::format("the planner found no plan within search.time_budget {} plus {}",
                         FormatSeconds(job_.search.time_budget_ns), FormatSeconds(limits_.planning_margin_ns));
    case v1::JOB_STATE_DEPLOYING: {
      const bool preparing = rollout_.phase() == PlanRollout::Phase::kPreparing;
      return fmt::format("workers did not {} epoch {} within {}: {}", preparing ? "prepare" : "commit",
                         rollout_.epoch(), FormatSeconds(preparing ? PrepareLimitNs() : limits_.commit_timeout_ns),
                         DisplayNames(rollout_.Missing()));
    }
    case v1::JOB_STATE_RECOVERING:
      return fmt::format("workers were not ready for another epoch within {}", FormatSeconds(limits_.start_timeout_ns));
    default:
      return fmt::format("iteration {} has not finished within {}", iterations_.next(),
                         FormatSeconds(ProgressTimeoutNs()));
  }
}

bool JobRun::AllDone() const { return state_ == v1::JOB_STATE_RUNNING && reached_ >= EndIteration(job_, run_); }

std::string JobRun::WaitsFor() const {
  const std::string names = fmt::format("{} {}", silent_.size() == 1 ? "agent" : "agents", DisplayNames(silent_));
  if (state_ == v1::JOB_STATE_PAUSED) {
    return silent_.empty() || pause_wanted_ ? "" : fmt::format("it goes on when {} can be heard", names);
  }
  if (state_ == v1::JOB_STATE_RECOVERING) {
    return WhatRecoveryWaitsFor();
  }
  if (end_held_) {
    return fmt::format("it pauses when {} can be heard", names);
  }
  if (AllDone() && !silent_.empty()) {
    return fmt::format("all iterations are done; it waits for the reports of {}", names);
  }
  if (moving_) {
    return state_ == v1::JOB_STATE_RUNNING ? fmt::format("it leaves after the iteration under way: {}", move_cause_)
                                           : "";
  }
  if (AllDone() && !LastSaved()) {
    return checkpoint_trouble_.empty()
               ? "all iterations are done; the last state is being written"
               : fmt::format("all iterations are done; the last state cannot be written and is tried again: {}",
                             checkpoint_trouble_);
  }
  if (silent_.size() == nodes_.size()) {
    return "none of its agents can be heard; it waits for one of them, and its workers go on meanwhile";
  }
  return state_ == v1::JOB_STATE_RUNNING && ending_ && pause_wanted_ ? "it pauses after the iteration under way" : "";
}

std::string JobRun::SilenceSentence() const {
  return state_ != v1::JOB_STATE_RUNNING || silent_.empty()
             ? ""
             : fmt::format("{} {} cannot be heard; workers there go on by themselves meanwhile",
                           silent_.size() == 1 ? "agent" : "agents", DisplayNames(silent_));
}

std::string JobRun::WhatRecoveryWaitsFor() const {
  if (!silent_.empty()) {
    return fmt::format("it goes on when {} {} can be heard", silent_.size() == 1 ? "agent" : "agents",
                       DisplayNames(silent_));
  }
  std::vector<WorkerKey> alone;
  for (const auto& [key, worker] : workers_) {
    if (worker.lost && !worker.stopped && worker.alone_since_ns.has_value()) {
      alone.push_back(key);
    }
  }
  return alone.empty()
             ? ""
             : fmt::format("no agent knows the fate of worker {}; another takes its place once it must have ended",
                           DisplayNames(alone));
}

bool JobRun::AllFinished() const {
  return std::ranges::all_of(members_, [&](const EpochMember& member) { return workers_.at(member.worker).finished; });
}

int64_t JobRun::AloneNs(const NodeKey& node) const {
  constexpr int64_t kGraceNs = 30'000'000'000;  // of agents that have not told theirs
  constexpr int64_t kMarginNs = 5'000'000'000;
  const int64_t told_ns = OrphanGraceNs(node);
  return kMarginNs + std::max(told_ns == 0 ? kGraceNs : told_ns, SlowestIterationNs());
}

int64_t JobRun::OrphanGraceNs(const NodeKey& node) const {
  for (const AllocatedSite& site : allocation_.sites) {
    for (const AllocatedNode& allocated : site.nodes) {
      if (site.name == node.site && allocated.spec.node() == node.node) {
        return allocated.orphan_grace_ns;
      }
    }
  }
  return 0;
}

int64_t JobRun::WorkersOn(const NodeKey& node) const {
  return std::ranges::count_if(
      workers_, [&](const auto& entry) { return entry.first.node_key() == node && !entry.second.stopped; });
}

std::map<WorkerKey, bool> JobRun::Crew() const {
  std::map<WorkerKey, bool> crew;
  for (const auto& [key, worker] : workers_) {
    if (!worker.stopped && !worker.exited) {
      crew[key] = !worker.unseen;
    }
  }
  return crew;
}

}  // namespace geopipe
