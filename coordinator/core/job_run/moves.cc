// Hands a run's job to the run that follows it on other devices.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"

namespace geopipe {

void JobRun::GoOnFrom(Earlier earlier) {
  epochs_before_ = earlier.epochs;
  iterations_ = std::move(earlier.iterations);
  listed_ = std::move(earlier.checkpoints);
  resumable_ = std::move(earlier.resumable);
  may_go_back_ = true;  // also to the state behind the last iteration, where nothing is left to do but to end
  must_find_state_ = earlier.told || !listed_.empty() || !resumable_.empty();
  if (earlier.micro_batch_size > 0) {
    Choose(earlier.micro_batch_size, earlier.sequence_length);
  }
}

void JobRun::Choose(int64_t micro_batch_size, int64_t sequence_length) {
  choices_.search.micro_batch_size = {micro_batch_size};
  choices_.search.sequence_length = {sequence_length};
}

bool JobRun::Earlier::CanGoOnAt(const std::set<NodeKey>& nodes) const {
  const bool has_state =
      std::ranges::any_of(checkpoints, [&](const ListedCheckpoint& each) { return each.IsAt(nodes); });
  return has_state || (checkpoints.empty() && resumable.empty() && !told);
}

std::set<NodeKey> JobRun::MemberNodes() const {
  std::set<NodeKey> nodes;
  for (const EpochMember& member : members_) {
    nodes.insert(member.worker.node_key());
  }
  return nodes;
}

std::vector<CheckpointIdentity> JobRun::Checkpoints() const {
  const std::set<NodeKey> nodes = MemberNodes();
  std::vector<CheckpointIdentity> found;
  for (const ListedCheckpoint& each : listed_) {
    // Nodes have what this run has written, unless they have lost it since.
    if ((each.identity.incarnation == incarnation_ && !each.IsUnreadableAt(nodes)) || each.IsAt(nodes)) {
      found.push_back(each.identity);
    }
  }
  if (epochs_before_ == 0) {
    std::ranges::copy(resumable_, std::back_inserter(found));
  }
  return found;
}

bool JobRun::FindsState() const { return !must_find_state_ || !Checkpoints().empty(); }

// Removes holders that no longer report a checkpoint: a node that is back may have lost its disk.
void JobRun::DropLostParts() {
  for (ListedCheckpoint& each : listed_) {
    for (ListedCheckpoint::Holders& holders : each.parts) {
      std::erase_if(holders, [&](const NodeKey& node) {
        const auto found = found_checkpoints_.find(node);
        return found != found_checkpoints_.end() &&
               std::ranges::find(found->second, each.identity) == found->second.end();
      });
    }
  }
}

Reaction JobRun::BeginMove(std::string cause) {
  moving_ = true;
  move_cause_ = std::move(cause);
  ending_ = true;
  end_held_ = !silent_.empty();
  return end_held_ ? Reaction{} : Reaction{.sends = EndAll()};
}

Reaction JobRun::EnterReplanning(int64_t now_ns) {
  state_ = v1::JOB_STATE_REPLANNING;
  deadline_ns_ = kNoDeadlineNs;
  move_tries_ = 0;
  return SaveForMove(now_ns, false);
}

Reaction JobRun::SaveForMove(int64_t now_ns, bool failed) {
  constexpr int kMaxTries = 5;                      // then it goes on where it is
  constexpr int64_t kFirstDelayNs = 1'000'000'000;  // doubled from try to try: a rank may still write the one before
  constexpr int64_t kAgainNs = 60'000'000'000;
  if (!moving_) {
    return Decide();
  }
  std::set<NodeKey> staying;
  for (const EpochMember& member : members_) {
    if (!leaving_.contains(member.worker.site)) {
      staying.insert(member.worker.node_key());
    }
  }
  // Copies of it that are under way are not waited for: they are made at the pace for training, although nothing trains
  // now.
  if (!listed_.empty() && listed_.back().identity.iteration == *ended_at_ && listed_.back().IsAt(staying)) {
    return Reaction::MoveTo(v1::JOB_STATE_PENDING,
                            fmt::format("{}; the state before iteration {} is safe", move_cause_, *ended_at_));
  }
  if (checkpoints_.Pending(*ended_at_) && (heard_all_ || !silent_.empty())) {
    return {};
  }
  if (failed && move_tries_ >= kMaxTries) {
    moving_ = ending_ = false;
    move_not_before_ns_ = now_ns + kAgainNs;
    return Decide();
  }
  if (failed) {
    move_save_at_ns_ = now_ns + (kFirstDelayNs << std::max(0, move_tries_ - 1));
  }
  if (!silent_.empty() || now_ns < move_save_at_ns_) {
    return {};
  }
  ++move_tries_;
  heard_all_ = true;
  return {.sends = OrderCheckpoint(*ended_at_)};
}

}  // namespace geopipe
