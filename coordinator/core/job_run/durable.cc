// Stores a run, and restores one that another life of the coordinator has left.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
namespace {

std::vector<WorkerKey> WorkersOf(const std::vector<EpochMember>& members) {
  std::vector<WorkerKey> workers;
  workers.reserve(members.size());
  for (const EpochMember& member : members) {
    workers.push_back(member.worker);
  }
  return workers;
}

}  // namespace

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
    epoch.mutable_state_ranks()->Assign(epoch_->state_ranks.begin(), epoch_->state_ranks.end());
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
  // Hellos of workers that were started again are not stored, so it is not known who has said hello.
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
  self.RestoreEvaluations(stored.detail);
  if (self.state_ != v1::JOB_STATE_PROFILING && self.state_ != v1::JOB_STATE_PLANNING) {
    self.RestoreLosses(stored.detail, now);
    GP_RETURN_IF_ERROR(self.RestoreEpoch(std::move(stored)));
  } else {
    self.RestoreLosses(stored.detail, now);
    self.iterations_ = IterationLog::Restore(0, limits.max_iterations_kept, 0, stored.next_iteration,
                                             std::move(stored.iterations), {});
  }
  self.SetDeadline(now.ns);
  return restored;
}

void JobRun::RestoreEvaluations(const v1::JobDetail& detail) {
  evaluations_ = EvaluationLog(job_.evaluation, EndIteration(job_, run_));
  if (detail.evaluations_size() > 0) {
    evaluations_.PassOver(detail.evaluations().rbegin()->iteration());
  }
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
  memory_ = MemoryLog(stored.detail.measured_memory());
  const v1::RecordedEpoch& epoch = stored.record.epoch();
  epoch_ = Epoch{.number = epoch.number(),
                 .members = members_,
                 .secret = epoch.secret(),
                 .first_iteration = epoch.first_iteration(),
                 .state_epoch = epoch.state_epoch(),
                 .from_checkpoint = std::nullopt,
                 .state_ranks = {epoch.state_ranks().begin(), epoch.state_ranks().end()}};
  if (!epoch_->state_ranks.empty() && epoch_->state_ranks.size() != members_.size()) {
    return absl::DataLossError(fmt::format("its epoch has {} ranks that are given states, its plan {}",
                                           epoch_->state_ranks.size(), members_.size()));
  }
  for (int rank = 0; rank < std::min<int>(epoch.incarnations_size(), static_cast<int>(members_.size())); ++rank) {
    epoch_->members[rank].incarnation = epoch.incarnations(rank);
  }
  if (epoch.has_from_checkpoint()) {
    GP_ASSIGN_OR_RETURN(epoch_->from_checkpoint, FromProto(epoch.from_checkpoint()));
  }
  checkpoints_.BeginEpoch(*epoch_, incarnation_, plan_->plan.sequence_length, job_.checkpoint.replicate > 0);
  rollout_ = PlanRollout(epoch.number(), plan_->plan.grid, WorkersOf(members_), epoch.committed());
  if (stored.next_iteration < FirstIteration()) {
    stored.iterations.clear();  // of a run that did not get as far
  }
  iterations_ = IterationLog::Restore(plan_->plan.grid.size(), limits_.max_iterations_kept, epoch.number(),
                                      std::max(FirstIteration(), stored.next_iteration), std::move(stored.iterations),
                                      stored.partial);
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

}  // namespace geopipe
