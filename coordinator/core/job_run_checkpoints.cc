// A run's checkpoints: which are asked for, and the last one, which the job is not COMPLETED without.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run.h"

namespace geopipe {

Reaction JobRun::Carry(RunCheckpoints::Outcome outcome) {
  Reaction reaction{.checkpoint = outcome.complete, .checkpoint_trouble = std::move(outcome.trouble)};
  for (RunCheckpoints::ManifestOrder& order : outcome.orders) {
    v1::WorkerCommand command;
    command.set_epoch(epoch_->number);
    *command.mutable_write_manifest() = std::move(order.command);
    reaction.sends.push_back(Command(order.worker, std::move(command)));
  }
  if (reaction.checkpoint_trouble.has_value()) {
    checkpoint_trouble_ = *reaction.checkpoint_trouble;
  }
  if (reaction.checkpoint.has_value()) {
    const CheckpointIdentity& complete = reaction.checkpoint->identity;
    // One that was written again, or is of a future that is no more.
    std::erase_if(listed_, [&](const CheckpointIdentity& each) { return each.iteration >= complete.iteration; });
    listed_.push_back(complete);
    if (std::ssize(listed_) > job_.checkpoint.keep) {
      listed_.erase(listed_.begin());
    }
    checkpoint_trouble_.clear();
    reaction.change = Over();
  }
  return reaction;
}

bool JobRun::LastSaved() const {
  return job_.checkpoint.path.empty() || (!listed_.empty() && listed_.back().iteration >= EndIteration(job_, run_));
}

Reaction JobRun::SaveLast(int64_t now_ns) {
  constexpr int64_t kAgainNs = 10'000'000'000;
  const int64_t end = EndIteration(job_, run_);
  const bool is_due = AllDone() && AllFinished() && !LastSaved() && !checkpoints_.Pending(end) && silent_.empty();
  // It was written when training ended; that nothing came of it is known, unless its reports went to an earlier
  // coordinator.
  if (!is_due || (checkpoint_trouble_.empty() && heard_all_)) {
    return {};
  }
  if (save_last_at_ns_ == 0) {
    save_last_at_ns_ = now_ns + kAgainNs;
  }
  if (now_ns < save_last_at_ns_) {
    return {};
  }
  save_last_at_ns_ = 0;
  heard_all_ = true;
  return {.sends = OrderCheckpoint(end)};
}

std::vector<NodeMessage> JobRun::OrderCheckpoint(int64_t iteration) {
  checkpoints_.Ask(iteration);
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  command.mutable_checkpoint()->set_iteration(iteration);
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    sends.push_back(Command(member.worker, command));
  }
  return sends;
}

absl::StatusOr<int64_t> JobRun::Checkpoint(Reaction& reaction) {
  constexpr int64_t kHearNs = 2'000'000'000;  // until every rank has heard of it
  if (job_.checkpoint.path.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has no checkpoint.path to write to; give it one and apply it again", job_.name));
  }
  if (state_ == v1::JOB_STATE_PAUSED) {
    if ((listed_.empty() || listed_.back().iteration < *ended_at_) && !checkpoints_.Pending(*ended_at_)) {
      reaction.sends = OrderCheckpoint(*ended_at_);
    }
    return *ended_at_;
  }
  if (state_ != v1::JOB_STATE_RUNNING || ending_) {
    return absl::FailedPreconditionError(
        fmt::format("job {} {}; a checkpoint can be asked for while it is RUNNING or PAUSED", job_.name,
                    state_ == v1::JOB_STATE_RUNNING ? "is about to pause" : "is not running yet"));
  }
  const int64_t end = EndIteration(job_, run_);
  const int64_t margin = 2 + kHearNs / std::max<int64_t>(1, plan_->prediction.iteration_ns);
  const int64_t iteration = std::max(reached_, epoch_->first_iteration) + margin;
  if (iteration >= end) {
    return end;  // it is written anyway
  }
  if (!checkpoints_.Pending(iteration)) {
    reaction.sends = OrderCheckpoint(iteration);
  }
  return iteration;
}

}  // namespace geopipe
