// Reactions of a run to workers that fail, end, fall silent or are stuck.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/job_run/job_run.h"
#include "optimizer/base/quantities.h"
#include "optimizer/model/patience.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {

Reaction JobRun::OnFailure(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::FailureReport& report) {
  if (report.parked()) {
    worker.states = StatesOf(report.states());
  }
  if (report.parked() && ending_ && !end_held_) {  // the others have left as they were told to, before it heard of that
    return OnEnded(now_ns, worker, key, report.next_iteration(), true);
  }
  worker.failed = true;
  FailureEvidence evidence = EvidenceOf(key, report);
  if (report.has_unreadable()) {
    const Left left = PassOver(report.unreadable());
    if (left == Left::kElsewhere && state_ == v1::JOB_STATE_DEPLOYING) {
      return Reaction::MoveTo(v1::JOB_STATE_PENDING, evidence.sentence);
    }
    if (left == Left::kAnother) {
      evidence.kind = "unreadable";
      evidence.permanent = false;
    }
  }
  if (report.parked()) {
    Advance(worker, v1::WORKER_PHASE_ENDED);
    worker.next_iteration = report.next_iteration();
  } else {
    worker.trouble = evidence.sentence;
  }
  diagnosis_.Add(now_ns, std::move(evidence));
  return Diagnose(now_ns, false);
}

JobRun::Left JobRun::PassOver(const v1::CheckpointIdentity& identity) {
  const absl::StatusOr<CheckpointIdentity> checkpoint = FromProto(identity);
  if (!checkpoint.ok()) {
    return Left::kNothing;
  }
  const std::set<NodeKey> nodes = MemberNodes();
  const auto listed = std::ranges::find(listed_, *checkpoint, &ListedCheckpoint::identity);
  const bool is_beyond = listed != listed_.end() && listed->IsBeyond(nodes);
  if (is_beyond && !listed->IsUnreadableAt(nodes)) {
    listed->unreadable_at.push_back(nodes);
    if (listed->unreadable_at.size() > ListedCheckpoint::kMaxUnreadable) {
      listed->unreadable_at.erase(listed->unreadable_at.begin());
    }
  }
  std::vector<CheckpointIdentity> others = Checkpoints();
  std::erase(others, *checkpoint);
  if (others.empty()) {  // the checkpoint stays listed: starting over is for people to decide
    const bool is_elsewhere = std::ranges::any_of(
        listed_, [&](const ListedCheckpoint& each) { return each.IsUnreadableAt(nodes) && each.IsBeyond(nodes); });
    return is_elsewhere && limits_.restarts_per_hour > 0 ? Left::kElsewhere : Left::kNothing;
  }
  if (listed != listed_.end() && !is_beyond) {
    listed_.erase(listed);
  }
  const bool none_told = iterations_.next() == FirstIteration();
  if (std::erase(resumable_, *checkpoint) > 0 && none_told) {
    iterations_.BeginAt(plan_->plan.grid.size(), FirstIteration(), limits_.max_iterations_kept);
  }
  return Left::kAnother;
}

Reaction JobRun::OnExit(int64_t now_ns, const WorkerKey& key, const v1::WorkerExit& exit) {
  const auto found = workers_.find(key);
  if (found == workers_.end() || found->second.stopped) {
    return {};
  }
  found->second.exited = true;
  found->second.alone_since_ns.reset();
  const bool orderly = found->second.finished && exit.signal() == 0 && exit.exit_code() == 0;
  if (orderly) {
    return {};
  }
  // A worker that has reported a failure stops by itself afterwards: its exit is no news, nor is the exit of one that
  // is to be started again.
  if (found->second.lost) {
    return {};
  }
  FailureEvidence evidence = EvidenceOf(key, exit);
  if (found->second.trouble.empty()) {
    found->second.trouble = evidence.sentence;
  }
  if (exit.signal() != 0 || !found->second.failed) {
    diagnosis_.Add(now_ns, std::move(evidence));
  }
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnSilent(int64_t now_ns, const WorkerKey& key, const v1::WorkerSilent& silent) {
  Worker& worker = workers_.at(key);
  if (worker.lost) {
    return {};
  }
  worker.trouble =
      fmt::format("worker {} (site {}, pid {}) is alive but has been silent for {}: it is stopped or stuck",
                  DisplayName(key), key.site, silent.pid(), FormatSeconds(silent.silent_ns()));
  diagnosis_.Add(now_ns, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "silent"});
  return Diagnose(now_ns, false);
}

// A compute action should take as long as planned, not many times that; one that only waits for messages is not under
// way. It counts when two heartbeats in a row report it: after a pause of the whole host the first one means nothing.
Reaction JobRun::CheckStuck(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status) {
  const int64_t limit_ns = StuckAfterNs(status.action());
  const bool stuck = state_ == v1::JOB_STATE_RUNNING && status.action_ns() >= limit_ns;
  const std::string action = stuck ? fmt::format("{} of iteration {}", status.action(), status.next_iteration()) : "";
  if (!stuck || std::exchange(worker.slow_action, action) != action) {
    worker.slow_action = action;
    return {};
  }
  worker.trouble =
      fmt::format("worker {} (site {}) is stuck: {} has taken {} so far and should take {} at most", DisplayName(key),
                  key.site, ToUtf8(action), FormatSeconds(status.action_ns()), FormatSeconds(limit_ns));
  diagnosis_.Add(now_ns, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "stuck"});
  return Diagnose(now_ns, false);
}

int64_t JobRun::StuckAfterNs(std::string_view text) const {
  const absl::StatusOr<Action> action = ParseAction(text);
  int64_t planned_ns = 0;
  if (plan_ != nullptr && action.ok() && action->stage >= 0 && action->stage < plan_->costs.shape.stages) {
    planned_ns = std::max(plan_->costs.forward_ns[action->stage], plan_->costs.BackwardNs(action->stage));
  }
  return std::max(limits_.stuck_after_ns, PatienceNs(static_cast<double>(planned_ns)));
}

}  // namespace geopipe
