// A run's checkpoints: which are asked for, and the last one, which the job is not COMPLETED without.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "coordinator/core/job_run/job_run.h"

namespace geopipe {

Reaction JobRun::Carry(int64_t now_ns, int64_t iteration, RunCheckpoints::Outcome outcome) {
  Reaction reaction{
      .checkpoint = outcome.complete, .copied = outcome.copied, .checkpoint_trouble = std::move(outcome.trouble)};
  if (!outcome.orders.empty()) {  // nodes make room for it: what they may remove is listed no more
    reaction.unlisted = Trim(std::max<int64_t>(1, job_.checkpoint.keep - 1));
  }
  for (RunCheckpoints::ManifestOrder& order : outcome.orders) {
    for (const CheckpointIdentity& kept : Kept()) {
      order.command.add_kept_iterations(kept.iteration);
    }
    v1::WorkerCommand command;
    command.set_epoch(epoch_->number);
    *command.mutable_write_manifest() = std::move(order.command);
    reaction.sends.push_back(Command(order.worker, std::move(command)));
  }
  for (const RunCheckpoints::CopyOrder& order : outcome.copies) {
    reaction.sends.push_back(CopyMessage(order));
  }
  if (reaction.checkpoint.has_value()) {
    List(*reaction.checkpoint);
    checkpoint_trouble_.clear();
  }
  if (reaction.copied.has_value()) {
    const auto listed = std::ranges::find(listed_, reaction.copied->identity, &ListedCheckpoint::identity);
    if (listed != listed_.end()) {
      listed->parts = reaction.copied->parts;
    }
  }
  if (reaction.checkpoint_trouble.has_value()) {
    checkpoint_trouble_ = *reaction.checkpoint_trouble;
  }
  if (state_ == v1::JOB_STATE_REPLANNING) {
    const bool is_own = iteration == *ended_at_;
    Reaction moved = SaveForMove(now_ns, is_own && reaction.checkpoint_trouble.has_value());
    std::ranges::move(moved.sends, std::back_inserter(reaction.sends));
    reaction.change = std::move(moved.change);
    reaction.wants_secret = moved.wants_secret;
  } else {
    reaction.change = Over();
  }
  return reaction;
}

// Lists a complete checkpoint in place of an earlier one of its iteration and of those of a future that is no more. The
// newest with copies at other sites stays, however old, until a newer one is copied: it is all that is left when a site
// is lost.
void JobRun::List(const ListedCheckpoint& complete) {
  DropAfter(complete.identity.iteration - 1);
  listed_.push_back(complete);
  Trim(job_.checkpoint.keep);
}

// True for a report that is repeated to a restarted coordinator: nodes may have removed the checkpoint since.
bool JobRun::IsOldNews(int64_t iteration) const {
  return !checkpoints_.Pending(iteration) && !listed_.empty() && iteration <= listed_.back().identity.iteration;
}

bool JobRun::Trim(int64_t keep) {
  const size_t before = listed_.size();
  const int64_t copied = Protected();
  auto oldest = listed_.begin();
  while (std::ssize(listed_) > keep && oldest != std::prev(listed_.end())) {
    oldest = oldest->identity.iteration == copied ? std::next(oldest) : listed_.erase(oldest);
  }
  return listed_.size() < before;
}

std::vector<CheckpointIdentity> JobRun::Kept() const {
  std::vector<CheckpointIdentity> kept;
  for (const ListedCheckpoint& each : listed_) {
    kept.push_back(each.identity);
  }
  if (listed_.empty()) {
    kept = resumable_;
  }
  return kept;
}

void JobRun::DropAfter(int64_t iteration) {
  std::erase_if(listed_, [&](const ListedCheckpoint& each) { return each.identity.iteration > iteration; });
}

int64_t JobRun::Protected() const {
  if (job_.checkpoint.replicate == 0) {
    return 0;
  }
  for (const ListedCheckpoint& each : listed_ | std::views::reverse) {
    if (each.is_copied()) {
      return each.identity.iteration;
    }
  }
  return 0;
}

NodeMessage JobRun::CopyMessage(const RunCheckpoints::CopyOrder& order) const {
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  v1::ReplicateCommand& replicate = *command.mutable_replicate();
  replicate.set_iteration(order.iteration);
  replicate.set_bytes_per_second(CopyRate(order));
  for (const RunCheckpoints::CopyOrder::Source& from : order.sources) {
    v1::FileSource& source = *replicate.add_sources();
    source.set_site(from.worker.site);
    source.set_address(workers_.at(from.worker).exchange_address);
    source.mutable_files()->Assign(from.files.begin(), from.files.end());
  }
  return Command(order.worker, std::move(command));
}

// Copies take half of the time until the next checkpoint: slowly, because training's messages share the link. While
// nothing trains, they are made as fast as possible.
double JobRun::CopyRate(const RunCheckpoints::CopyOrder& order) const {
  constexpr double kMinBytesPerSecond = 1e6;
  constexpr int64_t kEvery = 10;  // if the job does not say
  const int64_t every = job_.checkpoint.every == 0 ? kEvery : job_.checkpoint.every;
  const double between_s = static_cast<double>(every) * static_cast<double>(plan_->prediction.iteration_ns) / 1e9;
  return state_ != v1::JOB_STATE_RUNNING || between_s <= 0
             ? 0
             : std::max(kMinBytesPerSecond, 2 * static_cast<double>(order.bytes) / between_s);
}

bool JobRun::LastSaved() const {
  return job_.checkpoint.path.empty() ||
         (!listed_.empty() && listed_.back().identity.iteration >= EndIteration(job_, run_) &&
          !checkpoints_.Pending(EndIteration(job_, run_)));
}

Reaction JobRun::SaveLast(int64_t now_ns) {
  constexpr int64_t kAgainNs = 10'000'000'000;
  const int64_t end = EndIteration(job_, run_);
  // An attempt that some rank reports again after a restart may never end.
  const bool is_pending = heard_all_ && checkpoints_.Pending(end);
  const bool is_due = AllDone() && AllFinished() && !LastSaved() && !is_pending && silent_.empty();
  // The last state was written when training ended; a failure is known, unless its reports went to an earlier
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
  if (leaving_.empty() || state_ != v1::JOB_STATE_REPLANNING) {
    checkpoints_.Ask(iteration);
  } else {
    checkpoints_.Ask(iteration, {.wanted = true, .avoid = leaving_});
  }
  v1::WorkerCommand command;
  command.set_epoch(epoch_->number);
  command.mutable_checkpoint()->set_iteration(iteration);
  std::vector<NodeMessage> sends;
  for (const EpochMember& member : members_) {
    sends.push_back(Command(member.worker, command));
  }
  return sends;
}

JobRun::Rest JobRun::RestState() const {
  if (!listed_.empty() && listed_.back().identity.iteration >= *ended_at_) {
    return Rest::kSaved;
  }
  return checkpoints_.Pending(*ended_at_) && (heard_all_ || !silent_.empty()) ? Rest::kPending : Rest::kFailed;
}

std::vector<NodeMessage> JobRun::SaveRest() {
  heard_all_ = true;
  checkpoint_trouble_.clear();
  return OrderCheckpoint(*ended_at_);
}

absl::StatusOr<int64_t> JobRun::Checkpoint(Reaction& reaction) {
  constexpr int64_t kHearNs = 2'000'000'000;  // until every rank has heard of it
  if (job_.checkpoint.path.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has no checkpoint.path to write to; give it one and apply it again", job_.name));
  }
  if (state_ == v1::JOB_STATE_PAUSED) {
    if ((listed_.empty() || listed_.back().identity.iteration < *ended_at_) && !checkpoints_.Pending(*ended_at_)) {
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
    return end;  // that one is written anyway
  }
  if (!checkpoints_.Pending(iteration)) {
    reaction.sends = OrderCheckpoint(iteration);
  }
  return iteration;
}

}  // namespace geopipe
