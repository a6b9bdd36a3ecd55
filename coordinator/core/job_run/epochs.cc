// Leads a run from one epoch to the next: pauses, losses and restarts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"
#include "coordinator/core/run/worker_commands.h"
#include "optimizer/base/quantities.h"
#include "optimizer/model/process_grid.h"
#include "optimizer/model/transformer.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

// "planned: geopipe overlapped, micro_batch_size 1, …, 3 stages, predicted 0.812 s per iteration".
std::string PlanSentence(const PlanResult& plan) {
  return fmt::format(
      "planned: {} {}, micro_batch_size {}, sequence_length {}{}, {} micro-batches, {} stages, predicted {:.3f} s per "
      "iteration",
      ScheduleKindName(plan.plan.schedule), CommModeName(plan.plan.comm), plan.plan.micro_batch_size,
      plan.plan.sequence_length,
      plan.plan.delta_n.empty() ? "" : fmt::format(", delta_n [{}]", fmt::join(plan.plan.delta_n, ",")),
      plan.plan.micro_batches, plan.plan.stages.size(), static_cast<double>(plan.prediction.iteration_ns) / 1e9);
}

}  // namespace

// --- The next epoch -----------------------------------------------------------------------------------------------

EpochFacts JobRun::Facts() const {
  const bool resumed = !pause_wanted_ && !secret_.empty() && (silent_.empty() || state_ != v1::JOB_STATE_PAUSED);
  const bool goes_on = state_ == v1::JOB_STATE_RECOVERING || state_ == v1::JOB_STATE_REPLANNING;
  EpochFacts facts{.wanted = goes_on ? !moving_ && silent_.empty() : resumed,
                   .members = members_,
                   .replica_groups = ReplicaGroups(),
                   .workers = {},
                   .epochs_before = epochs_before_,
                   .end_iteration = EndIteration(job_, run_),
                   .told_iterations = std::min(iterations_.next(), evaluations_.next()),
                   .secret = secret_,
                   .checkpoints = Checkpoints(),
                   .may_go_back = may_go_back_};
  for (const auto& [key, worker] : workers_) {
    if (!worker.stopped) {
      facts.workers.push_back({.worker = {key, worker.incarnation},
                               .attached = worker.hello && !worker.lost,
                               .lost = loss_,
                               .epoch = worker.epoch,
                               .phase = worker.phase,
                               .states = worker.states});
    }
  }
  return facts;
}

std::vector<int32_t> JobRun::ReplicaGroups() const {
  std::vector<int32_t> groups;
  if (plan_ == nullptr || plan_->plan.zero_stage > 0) {  // replicas have states of their own
    return groups;
  }
  const ProcessGrid& grid = plan_->plan.grid;
  for (int32_t rank = 0; rank < std::ssize(members_); ++rank) {
    groups.push_back(grid.ReplicasOf(rank).front());
  }
  return groups;
}

// Bytes of the values and two moments of the largest rank.
int64_t JobRun::GivenStateBytes() const {
  constexpr int64_t kStateBytes = 12;
  int64_t parameters = 0;
  if (epoch_.has_value() && !epoch_->state_ranks.empty()) {
    std::vector<int64_t> of_rank(plan_->plan.pipeline_ranks.size(), 0);
    for (const StagePlan& stage : plan_->plan.stages) {
      of_rank[stage.pipeline_rank] += ParameterCountPerRank(job_.model, stage.layers, plan_->plan.grid.tensor);
    }
    parameters = std::ranges::max(of_rank);
  }
  return kStateBytes * parameters;
}

std::string JobRun::EpochSentence() const {
  if (state_ == v1::JOB_STATE_PLANNING) {
    return epoch_->from_checkpoint.has_value()
               ? fmt::format("{}; from the checkpoint of iteration {}", PlanSentence(*plan_), epoch_->first_iteration)
               : PlanSentence(*plan_);
  }
  if (epoch_->from_checkpoint.has_value()) {
    return fmt::format("epoch {} goes on from the checkpoint of iteration {}", epoch_->number, epoch_->first_iteration);
  }
  return epoch_->first_iteration == 0
             ? fmt::format("epoch {} begins anew", epoch_->number)
             : fmt::format("epoch {} goes on from iteration {}", epoch_->number, epoch_->first_iteration);
}

Reaction JobRun::Decide() {
  const bool recovering = state_ == v1::JOB_STATE_RECOVERING;
  const bool between = recovering || state_ == v1::JOB_STATE_PLANNING || state_ == v1::JOB_STATE_PAUSED ||
                       state_ == v1::JOB_STATE_REPLANNING;
  EpochDecision decision = NextEpoch(epoch_, Facts());
  switch (decision.kind) {
    case EpochDecision::Kind::kWait:
      return {};
    case EpochDecision::Kind::kFail:
      return Reaction::FailWith(std::move(decision.reason));
    case EpochDecision::Kind::kNew:
      break;
  }
  if (!between) {
    return {};
  }
  if (!epoch_.has_value() && !FindsState()) {
    return Reaction::FailWith("no checkpoint of the job is on the nodes of its plan; apply it again with --resume");
  }
  if (decision.epoch.first_iteration == 0 && !listed_.empty()) {
    return Reaction::MoveTo(v1::JOB_STATE_PENDING, "its nodes lack files of all its checkpoints");
  }
  if (recovering && pause_wanted_) {
    ended_at_ = decision.epoch.first_iteration;
    return Reaction::MoveTo(v1::JOB_STATE_PAUSED, fmt::format("paused before iteration {}", *ended_at_));
  }
  if (secret_.empty()) {
    return {.wants_secret = true};
  }
  secret_.clear();
  epoch_ = std::move(decision.epoch);
  ended_at_.reset();
  ends_at_.reset();
  ending_ = end_due_ = may_go_back_ = false;
  reached_ = epoch_->first_iteration;
  DropAfter(reached_);                                                            // of a future that is no more
  heard_all_ = heard_all_ && epoch_->first_iteration < EndIteration(job_, run_);  // else nobody writes the last state
  std::vector<WorkerKey> ranks;
  for (const EpochMember& member : epoch_->members) {
    ranks.push_back(member.worker);
    Worker& worker = workers_.at(member.worker);
    worker.finished = worker.told_all = worker.failed =
        false;  // the failure that parked it belongs to the previous epoch
    worker.slow_action.clear();
  }
  rollout_ = PlanRollout(epoch_->number, plan_->plan.grid, std::move(ranks));
  MarkIdle();
  iterations_.BeginEpoch(epoch_->number, epoch_->first_iteration);
  evaluations_.PassOver(FirstIteration() - 1);  // those before the job's first iteration are of another
  evaluations_.GiveUpBefore(epoch_->first_iteration);
  checkpoints_.BeginEpoch(*epoch_, incarnation_, plan_->plan.sequence_length, job_.checkpoint.replicate > 0);
  return Reaction::MoveTo(v1::JOB_STATE_DEPLOYING, EpochSentence());
}

Reaction JobRun::TakeSecret(std::string secret) {
  secret_ = std::move(secret);
  return Decide();
}

Reaction JobRun::Pause() {
  pause_wanted_ = true;
  if (state_ == v1::JOB_STATE_PAUSED) {  // a resume that has not come about
    secret_.clear();
    return {};
  }
  if (std::exchange(ending_, true)) {
    return {};  // after a pause that was taken back
  }
  end_held_ = !silent_.empty();
  return end_held_ ? Reaction{} : Reaction{.sends = EndAll()};
}

Reaction JobRun::Resume(std::string secret) {
  pause_wanted_ = false;
  if (std::exchange(end_held_, false)) {  // nobody has heard of it
    ending_ = end_due_ = moving_ = false;
    return {};
  }
  secret_ = std::move(secret);
  return Decide();
}

// --- What is lost -------------------------------------------------------------------------------------------------

Reaction JobRun::Diagnose(int64_t now_ns, bool more_may_come) {
  const std::optional<FailureEvidence> verdict = diagnosis_.Verdict(now_ns, limits_.failure_grace_ns, more_may_come);
  if (!verdict.has_value()) {
    return {};
  }
  if ((MayRecover() && !verdict->permanent) || MayBeginAgain(*verdict)) {
    return Recover(now_ns, *verdict);
  }
  loss_ = verdict->diverged && epoch_.has_value() ? fmt::format("{}; {}", verdict->sentence, LastCheckpointWords())
                                                  : verdict->sentence;
  return Decide();
}

std::string JobRun::LastCheckpointWords() const {
  const std::vector<CheckpointIdentity> found = Checkpoints();
  if (found.empty()) {
    return job_.checkpoint.path.empty() ? "no checkpoint was written: the job has no checkpoint.path"
                                        : "no checkpoint was written";
  }
  return fmt::format("last checkpoint: iteration {}",
                     std::ranges::max(found, {}, &CheckpointIdentity::iteration).iteration);
}

bool JobRun::MayRecover() const {
  return limits_.restarts_per_hour > 0 && epoch_.has_value() && state_ != v1::JOB_STATE_PROFILING &&
         state_ != v1::JOB_STATE_PLANNING;
}

// True when the job may start over: without an epoch it has nothing to lose. Only failures of devices are worth it,
// since a worker's own would recur; but a job that had an epoch in an earlier run starts over after any that is not
// permanent.
bool JobRun::MayBeginAgain(const FailureEvidence& why) const {
  const bool by_devices = why.kind == "killed" || why.kind == "silent" || why.kind == "gone";
  return limits_.restarts_per_hour > 0 && !epoch_.has_value() && (by_devices || (epochs_before_ > 0 && !why.permanent));
}

bool JobRun::Rests(const Worker& worker) {
  return worker.stopped || worker.phase == v1::WORKER_PHASE_IDLE || worker.phase == v1::WORKER_PHASE_ENDED ||
         worker.phase == v1::WORKER_PHASE_FINISHED;
}

Reaction JobRun::Recover(int64_t now_ns, const FailureEvidence& why) {
  diagnosis_ = {};
  Reaction reaction{.loss = Reaction::Loss{.kind = std::string(why.kind), .cause = why.sentence, .workers = {}}};
  for (auto& [key, worker] : workers_) {
    if (worker.stopped || worker.lost || worker.trouble.empty()) {
      continue;
    }
    worker.lost = true;
    reaction.loss->workers.emplace_back(key, worker.trouble);
    if (std::optional<std::string> enough = restarts_.OnLost(now_ns, key, worker.trouble); enough.has_value()) {
      return Reaction::FailWith(*std::move(enough));
    }
  }
  reaction.loss->delay_ns = restarts_.NextDelayNs();
  reaction.loss->stalled_ns = state_ == v1::JOB_STATE_RUNNING ? std::max<int64_t>(0, now_ns - progress_ns_) : 0;
  if (!epoch_.has_value()) {
    reaction.change = Reaction::Change{v1::JOB_STATE_PENDING, why.sentence};
    return reaction;
  }
  may_go_back_ = ending_ = true;
  moving_ = false;
  end_held_ = end_due_ = false;
  ended_at_.reset();
  ends_at_.reset();
  recover_at_ns_ = now_ns + reaction.loss->delay_ns;
  if (state_ == v1::JOB_STATE_RECOVERING) {
    SetDeadline(now_ns);
    reaction.sends = StopLost();
  } else {
    reaction.change = Reaction::Change{v1::JOB_STATE_RECOVERING, why.sentence};
  }
  return reaction;
}

std::vector<NodeMessage> JobRun::EnterRecovering(int64_t now_ns) {
  state_ = v1::JOB_STATE_RECOVERING;
  quiet_since_ns_ = now_ns;
  SetDeadline(now_ns);
  std::vector<NodeMessage> sends = EndAll();
  std::ranges::move(StopLost(), std::back_inserter(sends));
  return sends;
}

// Stops lost workers that may still run, at once, since nothing that they hold is needed.
std::vector<NodeMessage> JobRun::StopLost() const {
  std::vector<NodeMessage> sends;
  for (const auto& [key, worker] : workers_) {
    if (worker.lost && !worker.stopped && !worker.exited) {
      sends.push_back({key.node_key(),
                       StopMessage(job_.name, 0, "another is started in its place", {key.device}, worker.incarnation)});
    }
  }
  return sends;
}

bool JobRun::Heard(const NodeKey& node) const { return std::ranges::find(silent_, node) == silent_.end(); }

bool JobRun::MayStart(int64_t now_ns, const WorkerKey& key, const Worker& worker) const {
  const bool may_live = worker.alone_since_ns.has_value() &&
                        now_ns < std::max(*worker.alone_since_ns, quiet_since_ns_) + AloneNs(key.node_key());
  return worker.lost && !worker.stopped && !may_live && Heard(key.node_key());
}

bool JobRun::RestartDue(int64_t now_ns) const {
  return state_ == v1::JOB_STATE_RECOVERING && now_ns >= recover_at_ns_ &&
         std::ranges::any_of(workers_, [&](const auto& entry) { return MayStart(now_ns, entry.first, entry.second); });
}

std::vector<NodeMessage> JobRun::StartLost(int64_t now_ns, uint64_t& last_incarnation) {
  std::vector<NodeMessage> sends = StopLost();  // an agent that was restarted may not know of it
  std::erase_if(sends, [&](const NodeMessage& message) { return !Heard(message.node); });
  for (auto& [key, worker] : workers_) {
    if (!MayStart(now_ns, key, worker)) {
      continue;
    }
    worker = Worker();
    worker.incarnation = ++last_incarnation;
    if (const int32_t rank = RankOf(key); rank >= 0) {
      members_[rank].incarnation = worker.incarnation;
    }
    sends.push_back(Start(key));
  }
  SetDeadline(now_ns);
  return sends;
}

Reaction JobRun::TickRecovering(int64_t now_ns, bool more_may_come) {
  if (!std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.lost || Rests(entry.second); })) {
    quiet_since_ns_ = now_ns;
  }
  if (Reaction reaction = Diagnose(now_ns, more_may_come); reaction.change.has_value() || reaction.loss.has_value()) {
    return reaction;
  }
  if (Reaction reaction = Decide(); reaction.change.has_value() || reaction.wants_secret) {
    return reaction;
  }
  return now_ns >= deadline_ns_ ? RecoverLate(now_ns) : Reaction{};
}

// The deadline of the state has passed.
Reaction JobRun::RecoverLate(int64_t now_ns) {
  const bool deploys_again = state_ == v1::JOB_STATE_DEPLOYING && epoch_->number > 1;
  if (FailureEvidence late{.worth = FailureEvidence::Worth::kRoot, .sentence = DeadlineSentence(), .kind = "late"};
      MayBeginAgain(late) && epochs_before_ > 0) {
    return Recover(now_ns, late);
  }
  if (!MayRecover() || (state_ == v1::JOB_STATE_DEPLOYING && !deploys_again)) {
    return Reaction::FailWith(DeadlineSentence());
  }
  FailureEvidence why{.worth = FailureEvidence::Worth::kRoot, .sentence = DeadlineSentence(), .kind = "late"};
  if (deploys_again) {
    for (const WorkerKey& key : rollout_.Missing()) {
      workers_.at(key).trouble =
          fmt::format("worker {} (site {}) did not {} epoch {} in time", DisplayName(key), key.site,
                      rollout_.phase() == PlanRollout::Phase::kPreparing ? "prepare" : "commit", epoch_->number);
    }
  } else if (state_ == v1::JOB_STATE_RECOVERING) {
    for (auto& [key, worker] : workers_) {
      if (!worker.stopped && !worker.lost && (!worker.hello || !Rests(worker))) {
        worker.trouble = fmt::format("worker {} (site {}) did not {} within {}", DisplayName(key), key.site,
                                     worker.hello ? "end its epoch" : "start", FormatSeconds(limits_.start_timeout_ns));
      }
    }
  } else {
    why.kind = "no_progress";
  }
  const bool is_news = std::ranges::any_of(
      workers_, [](const auto& entry) { return !entry.second.lost && !entry.second.trouble.empty(); });
  if (state_ == v1::JOB_STATE_RECOVERING && !is_news) {  // missing workers cannot be started yet
    SetDeadline(now_ns);
    return {};
  }
  return Recover(now_ns, why);
}

}  // namespace geopipe
