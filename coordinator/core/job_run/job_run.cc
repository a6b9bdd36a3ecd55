#include "coordinator/core/job_run/job_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/run/worker_commands.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr size_t kMaxReasonBytes = 8192;

std::vector<WorkerKey> WorkersOf(const std::vector<EpochMember>& members) {
  std::vector<WorkerKey> workers;
  workers.reserve(members.size());
  for (const EpochMember& member : members) {
    workers.push_back(member.worker);
  }
  return workers;
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

// --- What is durable ----------------------------------------------------------------------------------------------

v1::JobRecord JobRun::Record() const {
  v1::JobRecord record;
  record.set_run_incarnation(incarnation_);
  record.set_pause_wanted(pause_wanted_);
  record.set_next_secret(secret_);
  for (const CheckpointIdentity& each : resumable_) {
    *record.add_resume_from() = ToProto(each);
  }
  for (const AllocatedSite& site : allocation_.sites) {
    v1::RecordedSite& recorded = *record.add_sites();
    recorded.set_name(site.name);
    for (const AllocatedNode& node : site.nodes) {
      v1::RecordedNode& each = *recorded.add_nodes();
      *each.mutable_spec() = node.spec;
      each.mutable_devices()->Assign(node.devices.begin(), node.devices.end());
      each.set_orphan_grace_ns(node.orphan_grace_ns);
    }
  }
  for (const auto& [key, worker] : workers_) {
    v1::RecordedWorker& recorded = *record.add_crew();
    recorded.set_site(key.site);
    recorded.set_node(key.node);
    recorded.set_device(key.device);
    recorded.set_incarnation(worker.incarnation);
    recorded.set_stopped(worker.stopped);
    recorded.set_lost(worker.lost);
    recorded.set_exchange_address(worker.exchange_address);
  }
  record.set_may_go_back(may_go_back_);
  record.set_epochs_before(epochs_before_);
  record.set_moving(moving_);
  record.set_progressed(run_progressed_);
  if (epoch_.has_value()) {
    v1::RecordedEpoch& epoch = *record.mutable_epoch();
    epoch.set_number(epoch_->number);
    epoch.set_secret(epoch_->secret);
    epoch.set_first_iteration(epoch_->first_iteration);
    epoch.set_state_epoch(epoch_->state_epoch);
    for (const EpochMember& member : epoch_->members) {
      epoch.add_incarnations(member.incarnation);
    }
    epoch.set_committed(rollout_.phase() == PlanRollout::Phase::kCommitted);
    epoch.set_ending(ending_);
    if (epoch_->from_checkpoint.has_value()) {
      *epoch.mutable_from_checkpoint() = ToProto(*epoch_->from_checkpoint);
    }
    if (ended_at_.has_value()) {
      epoch.set_next_iteration(*ended_at_);
    }
  }
  return record;
}

absl::StatusOr<std::unique_ptr<JobRun>> JobRun::Restore(const JobSpec& job, const RunOptions& run, StoredJob stored,
                                                        std::string version, const JobRunLimits& limits, Now now) {
  const v1::JobRecord& record = stored.record;
  Allocation allocation;
  for (const v1::RecordedSite& site : record.sites()) {
    AllocatedSite& allocated = allocation.sites.emplace_back(AllocatedSite{.name = site.name(), .nodes = {}});
    for (const v1::RecordedNode& node : site.nodes()) {
      allocated.nodes.push_back({.spec = node.spec(),
                                 .devices = {node.devices().begin(), node.devices().end()},
                                 .orphan_grace_ns = node.orphan_grace_ns()});
    }
  }
  auto restored =
      std::make_unique<JobRun>(job, run, std::move(allocation), record.run_incarnation(), std::move(version), limits);
  JobRun& self = *restored;
  self.state_ = stored.detail.summary().state();
  self.pause_wanted_ = record.pause_wanted();
  self.secret_ = record.next_secret();
  self.progress_ns_ = self.told_ns_ = now.ns;
  self.may_go_back_ = record.may_go_back();
  self.epochs_before_ = record.epochs_before();
  if (self.epochs_before_ > 0) {
    self.Choose(stored.detail.plan().micro_batch_size(), stored.detail.plan().sequence_length());
  }
  self.moving_ = record.moving();
  self.run_progressed_ = record.progressed();
  self.move_cause_ = "the job goes on elsewhere";
  self.quiet_since_ns_ = now.ns;
  self.heard_all_ = false;
  GP_ASSIGN_OR_RETURN(self.resumable_, FromProto(record.resume_from()));
  // Who of those that were started again has said hello is not known.
  const bool begun = self.state_ != v1::JOB_STATE_PROFILING && self.state_ != v1::JOB_STATE_RECOVERING;
  if (record.crew_size() != std::ssize(self.workers_)) {
    return absl::DataLossError("its workers are not those of its devices");
  }
  self.nodes_.clear();
  for (const v1::RecordedWorker& recorded : record.crew()) {
    const WorkerKey key{recorded.site(), recorded.node(), recorded.device()};
    const auto worker = self.workers_.find(key);
    if (worker == self.workers_.end()) {
      return absl::DataLossError(fmt::format("its worker {} has none of its devices", DisplayName(key)));
    }
    worker->second.incarnation = recorded.incarnation();
    worker->second.stopped = recorded.stopped();
    worker->second.lost = recorded.lost();
    worker->second.exchange_address = recorded.exchange_address();
    worker->second.alone_since_ns = recorded.lost() ? std::optional(now.ns) : std::nullopt;
    worker->second.hello = begun;
    worker->second.phase = v1::WORKER_PHASE_UNSPECIFIED;  // until it is heard of
    if (!recorded.stopped()) {
      self.nodes_.insert(key.node_key());
    }
  }
  self.undriven_ = self.nodes_;
  self.silent_.assign(self.nodes_.begin(), self.nodes_.end());
  GP_ASSIGN_OR_RETURN(self.profile_, FromProto(stored.detail.profile()));
  GP_ASSIGN_OR_RETURN(self.listed_, ListedOf(stored.detail));
  self.must_find_state_ =
      self.epochs_before_ > 0 && (stored.next_iteration > 0 || !self.listed_.empty() || !self.resumable_.empty());
  if (self.state_ != v1::JOB_STATE_PROFILING && self.state_ != v1::JOB_STATE_PLANNING) {
    self.RestoreLosses(stored.detail, now);
    GP_RETURN_IF_ERROR(self.RestoreEpoch(std::move(stored)));
  } else if (self.epochs_before_ > 0) {
    self.RestoreLosses(stored.detail, now);
    self.iterations_ = IterationLog::Restore(0, limits.max_iterations_kept, 0, stored.next_iteration,
                                             std::move(stored.iterations), {});
  }
  self.SetDeadline(now.ns);
  return restored;
}

void JobRun::RestoreLosses(const v1::JobDetail& detail, Now now) {
  for (const v1::RecoverySummary& recovery : detail.recoveries()) {
    for (const v1::LostWorker& lost : recovery.workers()) {
      const int64_t age_ns = std::max<int64_t>(0, now.unix_ns - lost.unix_time_ns());
      restarts_.OnLost(now.ns - age_ns, {lost.site(), lost.node(), lost.device()}, lost.cause());
    }
    if (recovery.ended_unix_time_ns() == 0) {
      restarts_.CountAttempt();
    } else {
      restarts_.OnProgress();
    }
  }
}

absl::Status JobRun::RestoreEpoch(StoredJob stored) {
  GP_RETURN_IF_ERROR(RestorePlan(stored.detail));
  const v1::RecordedEpoch& epoch = stored.record.epoch();
  epoch_ = Epoch{.number = epoch.number(),
                 .members = members_,
                 .secret = epoch.secret(),
                 .first_iteration = epoch.first_iteration(),
                 .state_epoch = epoch.state_epoch(),
                 .from_checkpoint = std::nullopt};
  for (int rank = 0; rank < std::min<int>(epoch.incarnations_size(), static_cast<int>(members_.size())); ++rank) {
    epoch_->members[rank].incarnation = epoch.incarnations(rank);
  }
  if (epoch.has_from_checkpoint()) {
    GP_ASSIGN_OR_RETURN(epoch_->from_checkpoint, FromProto(epoch.from_checkpoint()));
  }
  checkpoints_.BeginEpoch(*epoch_, incarnation_, plan_->plan.sequence_length, job_.checkpoint.replicate > 0);
  rollout_ = PlanRollout(epoch.number(), WorkersOf(members_), epoch.committed());
  iterations_ =
      IterationLog::Restore(plan_->plan.grid.size(), limits_.max_iterations_kept, epoch.number(),
                            std::max(FirstIteration(), stored.next_iteration), std::move(stored.iterations), stored.partial);
  ending_ = epoch.ending();
  if (epoch.has_next_iteration()) {
    ended_at_ = epoch.next_iteration();
  }
  return absl::OkStatus();
}

absl::Status JobRun::RestorePlan(const v1::JobDetail& detail) {
  plan_ = std::make_shared<PlanResult>();
  GP_ASSIGN_OR_RETURN(plan_->plan, FromProto(detail.plan()));
  GP_ASSIGN_OR_RETURN(plan_->schedule, FromProto(detail.schedule()));
  GP_ASSIGN_OR_RETURN(plan_->costs, FromProto(detail.costs()));
  GP_ASSIGN_OR_RETURN(plan_->prediction, FromProto(detail.prediction()));
  for (int32_t rank = 0; rank < plan_->plan.grid.size(); ++rank) {
    const DevicePlace& place = plan_->plan.devices[rank];
    const AllocatedNode* node = NodeAt(plan_->plan.SiteOfRank(rank), place.node);
    const WorkerKey key{plan_->plan.SiteOfRank(rank), node == nullptr ? "" : node->spec.node(), place.device};
    const auto worker = workers_.find(key);
    if (worker == workers_.end()) {
      return absl::DataLossError(fmt::format("rank {} of its plan is on none of its devices", rank));
    }
    members_.push_back({key, worker->second.incarnation});
  }
  return absl::OkStatus();
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
    iterations_ = IterationLog(plan.grid.size(), FirstIteration(), limits_.max_iterations_kept);
  }
  plan_ = std::make_shared<PlanResult>(*result);
  members_ = std::move(members);
  secret_ = std::move(secret);
  deadline_ns_ = kNoDeadlineNs;
  return absl::OkStatus();
}

std::vector<NodeMessage> JobRun::EnterDeploying(int64_t now_ns, const LinkTable& links) {
  state_ = v1::JOB_STATE_DEPLOYING;
  progress_ns_ = now_ns;  // whoever was silent before has time to return
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

// Workers that are no rank.
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

// --- Orders -------------------------------------------------------------------------------------------------------

NodeMessage JobRun::Command(const WorkerKey& worker, v1::WorkerCommand command) const {
  NodeMessage message{worker.node_key(), {}};
  v1::RelayedCommand& relayed = *message.message.mutable_command();
  *relayed.mutable_worker() = MakeWorkerId(worker, job_.name, workers_.at(worker).incarnation);
  *relayed.mutable_command() = std::move(command);
  return message;
}

NodeMessage JobRun::Start(const WorkerKey& worker) const {
  return {worker.node_key(), StartMessage(job_.name, workers_.at(worker).incarnation, {worker.device})};
}

v1::WorkerCommand JobRun::ProfileOrder(const WorkerKey& worker) const {
  v1::WorkerCommand command;
  *command.mutable_profile() = ProfileMessage(job_, rounds_.round(), rounds_.candidate());
  if (rounds_.round() == 0) {
    command.mutable_profile()->set_checkpoint_path(job_.checkpoint.path);
  }
  for (const AllocatedSite& site : allocation_.sites) {
    for (const AllocatedNode& node : site.nodes) {
      if (site.name == worker.site && node.spec.node() == worker.node) {
        command.mutable_profile()->set_memory_limit_bytes(node.spec.device().memory_bytes());
      }
    }
  }
  return command;
}

v1::WorkerCommand JobRun::PrepareOrder(int32_t rank, const LinkTable& links) const {
  const Plan& plan = plan_->plan;
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  v1::PrepareCommand& prepare = *command.mutable_prepare();
  prepare = PrepareForAll(job_, run_, *plan_);
  prepare.set_rank(rank);
  prepare.set_first_iteration(epoch_->first_iteration);
  prepare.set_state_epoch(epoch_->state_epoch);
  if (epoch_->from_checkpoint.has_value()) {
    *prepare.mutable_from_checkpoint() = ToProto(*epoch_->from_checkpoint);
  }
  prepare.set_exchange_secret(epoch_->secret);
  AddFileSources(members_[rank].worker, prepare);
  prepare.set_run_incarnation(incarnation_);
  prepare.set_memory_limit_bytes(NodeAt(plan.SiteOfRank(rank), plan.devices[rank].node)->spec.device().memory_bytes());
  std::vector<std::string> sites;
  for (const PipelineRankPlan& pipeline_rank : plan.pipeline_ranks) {
    if (sites.empty() || sites.back() != pipeline_rank.site) {
      sites.push_back(pipeline_rank.site);
    }
  }
  for (v1::LinkShape& shape : links.ShapesFor(plan.SiteOfRank(rank), sites)) {
    *prepare.add_shapes() = std::move(shape);
  }
  return command;
}

// One worker of each other node, those of the same site first.
void JobRun::AddFileSources(const WorkerKey& reader, v1::PrepareCommand& prepare) const {
  for (const bool own_site : {true, false}) {
    std::set<NodeKey> nodes{reader.node_key()};
    for (const EpochMember& member : members_) {
      const std::string& address = workers_.at(member.worker).exchange_address;
      if ((member.worker.site == reader.site) == own_site && !address.empty() &&
          nodes.insert(member.worker.node_key()).second) {
        v1::FileSource& source = *prepare.add_file_sources();
        source.set_site(member.worker.site);
        source.set_address(address);
      }
    }
  }
}

v1::WorkerCommand JobRun::CommitOrder() const {
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  v1::CommitCommand& commit = *command.mutable_commit();
  commit.set_start_iteration(epoch_->first_iteration);
  commit.set_end_iteration(EndIteration(job_, run_));
  commit.set_secret(epoch_->secret);
  // Twice a second at most, and of all ranks the same iterations.
  commit.set_actions_every(1 + limits_.actions_interval_ns / std::max<int64_t>(1, plan_->prediction.iteration_ns));
  commit.set_orphan_grace_ns(SlowestIterationNs());
  commit.set_rest_grace_ns(limits_.rest_ns);
  for (v1::Peer& peer : rollout_.Peers()) {
    *commit.add_peers() = std::move(peer);
  }
  return command;
}

v1::WorkerCommand JobRun::EndOrder() const {
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  command.mutable_end_epoch();
  if (may_go_back_ || ends_at_.has_value()) {  // after a loss no iteration can be finished any more
    command.mutable_end_epoch()->set_next_iteration(may_go_back_ ? 0 : *ends_at_);
  }
  return command;
}

std::vector<NodeMessage> JobRun::ProfileRound(int64_t now_ns) {
  SetDeadline(now_ns);
  undriven_.clear();
  std::vector<NodeMessage> sends;
  for (const WorkerKey& worker : allocation_.workers()) {
    sends.push_back(Command(worker, ProfileOrder(worker)));
  }
  return sends;
}

std::vector<NodeMessage> JobRun::CommitAll(int64_t now_ns) {
  SetDeadline(now_ns);
  undriven_.clear();
  const v1::WorkerCommand command = CommitOrder();
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    sends.push_back(Command(member.worker, command));
  }
  return sends;
}

std::vector<NodeMessage> JobRun::EndAll() const {
  const v1::WorkerCommand command = EndOrder();
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    if (const Worker& worker = workers_.at(member.worker); !worker.lost && !HasLeft(worker)) {
      sends.push_back(Command(member.worker, command));
    }
  }
  return sends;
}

std::optional<v1::WorkerCommand> JobRun::OutstandingFor(const WorkerKey& key, const LinkTable& links) const {
  const auto missing = [&](const std::vector<WorkerKey>& workers) {
    return std::ranges::find(workers, key) != workers.end();
  };
  if (state_ == v1::JOB_STATE_PROFILING && measuring_ && missing(rounds_.missing())) {
    return ProfileOrder(key);
  }
  const int32_t rank = RankOf(key);
  if (rank < 0 || !epoch_.has_value()) {
    return std::nullopt;
  }
  if (state_ == v1::JOB_STATE_DEPLOYING && rollout_.phase() == PlanRollout::Phase::kPreparing) {
    return PrepareOrder(rank, links);  // also for who has answered: its agent may not know what to answer others
  }
  if (state_ == v1::JOB_STATE_DEPLOYING && rollout_.phase() == PlanRollout::Phase::kCommitting) {
    return CommitOrder();
  }
  if (state_ == v1::JOB_STATE_RECOVERING && !HasLeft(workers_.at(key))) {
    return EndOrder();
  }
  return std::nullopt;
}

std::vector<NodeMessage> JobRun::OnAllConnected(const LinkTable& links) {
  end_due_ = ending_ && (end_due_ || !undriven_.empty());
  if (!undriven_.empty() && (state_ == v1::JOB_STATE_REPLANNING || AllDone())) {
    // Orders and answers may have gone with an agent, and nothing else would come to light: asked for again.
    checkpoints_.Abandon();
    heard_all_ = false;
  }
  std::vector<NodeMessage> sends;
  for (const NodeKey& node : std::exchange(undriven_, {})) {
    for (const auto& [key, worker] : workers_) {
      if (key.node_key() != node || worker.stopped || worker.lost) {
        continue;
      }
      if (!worker.hello) {
        sends.push_back(Start(key));
      } else if (std::optional<v1::WorkerCommand> command = OutstandingFor(key, links); command.has_value()) {
        sends.push_back(Command(key, *std::move(command)));
      }
    }
  }
  return sends;
}

// --- Time ---------------------------------------------------------------------------------------------------------

int64_t JobRun::SlowestIterationNs() const { return plan_ == nullptr ? 0 : 10 * plan_->prediction.iteration_ns; }

int64_t JobRun::ProgressTimeoutNs() const { return std::max(limits_.progress_timeout_ns, SlowestIterationNs()); }

// What its CommitCommand says to a worker that is in an epoch or rests after one.
int64_t JobRun::GraceNs(const NodeSilence& silence, bool rests) const {
  return silence.margin_ns + std::max({silence.grace_ns, SlowestIterationNs(), rests ? limits_.rest_ns : 0});
}

// Reading a checkpoint takes as long as disks and links take, and who fetches a file notices by itself when none comes.
int64_t JobRun::PrepareLimitNs() const {
  constexpr double kSlowBytesPerSecond = 2e7;
  int64_t bytes = 0;
  for (const ListedCheckpoint& each : listed_) {
    bytes = epoch_.has_value() && epoch_->from_checkpoint == each.identity ? each.bytes : bytes;
  }
  return limits_.prepare_timeout_ns + static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / kSlowBytesPerSecond);
}

// For the state or phase that begins now.
void JobRun::SetDeadline(int64_t now_ns) {
  switch (state_) {
    case v1::JOB_STATE_PROFILING:
      deadline_ns_ = now_ns + (measuring_ ? limits_.profile_timeout_ns : limits_.start_timeout_ns);
      return;
    case v1::JOB_STATE_DEPLOYING:
      deadline_ns_ =
          now_ns + (rollout_.phase() == PlanRollout::Phase::kPreparing ? PrepareLimitNs() : limits_.commit_timeout_ns);
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
      return fmt::format("the planner gave no plan within search.time_budget {} and {} more",
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
    return fmt::format("all iterations are done; it waits for {} to tell what its workers did", names);
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
  return alone.empty() ? ""
                       : fmt::format(
                             "no agent knows what has become of worker {}; another takes its place when it must "
                             "have ended",
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
