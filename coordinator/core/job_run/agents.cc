// Reactions of a run to agents that return or are silent, and to time.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"

namespace geopipe {

Reaction JobRun::OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::map<WorkerKey, Living>& alive) {
  undriven_.insert(node);
  std::vector<WorkerKey> returned;
  for (auto& [key, worker] : workers_) {
    if (key.node_key() != node || worker.stopped) {
      continue;
    }
    const auto living = alive.find(key);
    worker.unseen = living == alive.end();
    if (!worker.unseen) {
      worker.hello = worker.hello || living->second.attached;
      TakeStatus(worker, living->second.status);
      returned.push_back(key);
      if (std::exchange(worker.lost_with_node, false)) {  // the worker was only out of reach
        worker.lost = false;
        worker.trouble.clear();
      }
    } else if (std::exchange(worker.lost_with_node, false)) {
      worker.alone_since_ns = now_ns;  // the worker may have lost its agent a moment ago
    } else if (worker.hello && !worker.lost && (!worker.finished || MayRecover() || !LastSaved())) {
      worker.trouble =
          fmt::format("worker {} (site {}) is gone: its agent came back without it", DisplayName(key), key.site);
      worker.alone_since_ns = now_ns;
      diagnosis_.Add(now_ns,
                     {.worth = FailureEvidence::Worth::kUnexplained, .sentence = worker.trouble, .kind = "gone"});
    }
  }
  NoteProgress(now_ns);
  if (Reaction reaction = Diagnose(now_ns, false); reaction.change.has_value() || reaction.loss.has_value()) {
    return reaction;
  }
  if (Reaction reaction = BeginMeasuring(now_ns); !reaction.sends.empty() || reaction.change.has_value()) {
    return reaction;
  }
  for (const WorkerKey& key : returned) {
    if (Reaction reaction = Settle(now_ns, workers_.at(key), key);
        reaction.change.has_value() || !reaction.sends.empty() || reaction.wants_secret) {
      return reaction;
    }
  }
  return {};
}

// Workers that were lost with their node were only out of reach.
void JobRun::OnReachable(const NodeKey& node, const std::map<WorkerKey, Living>& alive) {
  for (const auto& [key, living] : alive) {
    Worker& worker = workers_.at(key);
    if (key.node_key() != node) {
      continue;
    }
    TakeStatus(worker, living.status);
    if (std::exchange(worker.lost_with_node, false)) {
      worker.lost = false;
      worker.trouble.clear();
    }
  }
}

void JobRun::Hear(std::span<const NodeSilence> nodes) {
  silent_.clear();
  std::ranges::transform(nodes, std::back_inserter(silent_), &NodeSilence::node);
}

// One thing at a time, the first of these that is due; what it hides comes in a later tick:
//   1. with no node heard, a diagnosis goes on, and nothing else;
//   2. a recovery, which has deadlines of its own;
//   3. silence is noted, and a diagnosis that waits for evidence comes to its end: it may make all below needless;
//   4. an end of the epoch that was held back or is due is ordered;
//   5. a paused job with all its nodes may go on;
//   6. a job that moves saves its state, the last state of one that is done is saved;
//   7. reports that were lost at the epoch's end are asked for again;
//   8. the deadline of the state: the job recovers.
Reaction JobRun::OnTick(int64_t now_ns, std::span<const NodeSilence> nodes) {
  // The silence of a node matters in states in which the job cannot go on without it and no other report shows that it
  // goes on.
  const bool needs_nodes = state_ != v1::JOB_STATE_PLANNING && state_ != v1::JOB_STATE_PAUSED;
  // If this process hears from none of the nodes, it may itself be cut off while the workers go on.
  const bool unheard = nodes.size() == nodes_.size();
  const int64_t last_ns = std::exchange(last_tick_ns_, now_ns);
  const int64_t passed_ns = last_ns == 0 ? 0 : now_ns - last_ns;
  if (unheard) {
    Forgive(passed_ns);
    return diagnosis_.pending() ? Diagnose(now_ns, true) : Reaction{};
  }
  if (needs_nodes && !nodes.empty() && deadline_ns_ != kNoDeadlineNs) {
    deadline_ns_ += passed_ns;  // silent nodes cannot answer, and have a grace of their own
  }
  if (state_ == v1::JOB_STATE_RECOVERING) {
    return TickRecovering(now_ns, !nodes.empty());
  }
  if (needs_nodes) {
    NoteSilence(now_ns, nodes);
  }
  if (diagnosis_.pending()) {
    return Diagnose(now_ns, !nodes.empty());
  }
  if (silent_.empty() && state_ == v1::JOB_STATE_RUNNING && ending_ && (end_held_ || end_due_)) {
    end_held_ = end_due_ = false;
    return {.sends = EndAll()};
  }
  if (silent_.empty() && state_ == v1::JOB_STATE_PAUSED) {
    return Decide();
  }
  if (state_ == v1::JOB_STATE_REPLANNING) {
    return SaveForMove(now_ns, false);
  }
  if (Reaction reaction = SaveLast(now_ns); !reaction.sends.empty()) {
    return reaction;
  }
  // Missing reports are lost once all workers have left the epoch, are connected and say no more.
  constexpr int64_t kLastWordsNs = 120'000'000'000;
  if (state_ == v1::JOB_STATE_RUNNING && !members_.empty() && AllLeft() && nodes.empty() &&
      now_ns - std::max(told_ns_, progress_ns_) >= kLastWordsNs &&
      (iterations_.next() < reached_ || (AllFinished() && evaluations_.next() != EvaluationLog::kNone))) {
    return TellAll();
  }
  if (AllDone() && AllFinished() && iterations_.next() >= reached_) {
    return {};  // the job waits for its last checkpoint, however long that takes
  }
  return now_ns >= deadline_ns_ ? RecoverLate(now_ns) : Reaction{};
}

// Notes the loss of nodes that have been silent for so long that their workers, if they are cut off, have ended.
void JobRun::NoteSilence(int64_t now_ns, std::span<const NodeSilence> nodes) {
  for (const NodeSilence& silence : nodes) {
    const int64_t quiet_ns = std::min(silence.silent_ns, now_ns - progress_ns_);
    // A member that has left the epoch ends it for all, so the job may go on elsewhere without waiting for cut-off
    // workers to end by themselves.
    const bool may_leave = job_.on_site_loss == OnSiteLoss::kReplan && !AllDone() && SomeLeft();
    if (quiet_ns < (may_leave ? std::min(job_.grace_ns, GraceNs(silence, false)) : GraceNs(silence, AllDone()))) {
      continue;
    }
    std::vector<WorkerKey> workers;
    for (const auto& [key, worker] : workers_) {
      if (key.node_key() == silence.node && !worker.stopped) {
        workers.push_back(key);
      }
    }
    std::string sentence = fmt::format(
        "agent {} (site {}) has not been heard from for {}, and the job makes no progress; its workers: {}",
        DisplayName(silence.node), silence.node.site, FormatSeconds(silence.silent_ns), DisplayNames(workers));
    for (const WorkerKey& key : workers) {
      workers_.at(key).trouble = sentence;
      workers_.at(key).lost_with_node = true;
    }
    diagnosis_.Add(now_ns,
                   {.worth = FailureEvidence::Worth::kRoot, .sentence = std::move(sentence), .kind = "unreachable"});
  }
}

// --- Progress -----------------------------------------------------------------------------------------------------

// Completes the iterations that were done although reports of them are missing.
Reaction JobRun::TellAll() {
  Reaction reaction;
  for (int32_t rank = 0; rank < std::ssize(members_); ++rank) {
    reaction.iterations_finished += iterations_.OnRankAt(rank, workers_.at(members_[rank].worker).next_iteration);
  }
  if (AllFinished()) {
    evaluations_.GiveUpBefore(EndIteration(job_, run_) + 1);
  }
  reaction.change = Over();
  return reaction;
}

}  // namespace geopipe
