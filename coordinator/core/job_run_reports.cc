// How a run reacts to what its workers and their agents report.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "coordinator/core/cluster/link_traffic.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/run/worker_commands.h"
#include "coordinator/core/telemetry/data_agreement.h"
#include "optimizer/base/quantities.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

Reaction MoveTo(JobState state, std::string cause) { return {.change = Reaction::Change{state, std::move(cause)}}; }
Reaction FailWith(std::string cause) { return MoveTo(v1::JOB_STATE_FAILED, std::move(cause)); }
Reaction FailWith(const absl::Status& status) { return FailWith(std::string(status.message())); }

}  // namespace

Reaction JobRun::OnReport(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report) {
  const auto found = workers_.find(key);
  if (found == workers_.end() || found->second.stopped) {
    return {};
  }
  Worker& worker = found->second;
  const bool of_epoch = epoch_.has_value() && report.epoch() == epoch_->number;
  switch (report.report_case()) {
    case v1::WorkerReport::kHello:
      return OnHello(now_ns, worker, key, report.hello());
    case v1::WorkerReport::kProfile:
      return OnProfile(now_ns, key, report.profile());
    case v1::WorkerReport::kPrepared:
      return OnPrepared(now_ns, worker, key, report);
    case v1::WorkerReport::kCommitted:
      return OnCommitted(worker, key, report);
    case v1::WorkerReport::kFailure:
      // Of an older epoch it is no news, but a worker that cannot go on at all says so with whichever it knows.
      return of_epoch || !report.failure().parked() ? OnFailure(now_ns, worker, key, report.failure()) : Reaction{};
    case v1::WorkerReport::kIteration:
      return of_epoch ? OnIteration(now_ns, worker, key, report.iteration()) : Reaction{};
    case v1::WorkerReport::kFinished:
      return of_epoch ? OnFinished(worker, key, report.finished()) : Reaction{};
    case v1::WorkerReport::kEnded:
      return of_epoch ? OnEnded(now_ns, worker, key, report.ended().next_iteration(), true) : Reaction{};
    case v1::WorkerReport::kCheckpoint:
      return Carry(checkpoints_.OnFiles(now_ns, key, report.epoch(), report.checkpoint()));
    case v1::WorkerReport::kManifest:
      return Carry(checkpoints_.OnManifest(now_ns, key, report.epoch(), report.manifest()));
    case v1::WorkerReport::kDataCheck:  // of whichever epoch: the data is that of the run
      return OnDataCheck(worker, key, report.data_check());
    case v1::WorkerReport::kHeartbeat:
      return OnHeartbeat(now_ns, worker, key, report.heartbeat().status());
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return {};
}

// A worker that says hello again (to another process of its agent) is no younger for it.
Reaction JobRun::OnHello(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerHello& hello) {
  const bool first = !std::exchange(worker.hello, true);
  if (first && hello.version() != version_) {
    return FailWith(fmt::format("worker {} is version {} and the coordinator is version {}; install the same on both",
                                DisplayName(key), hello.version(), version_));
  }
  return BeginMeasuring(now_ns);
}

Reaction JobRun::BeginMeasuring(int64_t now_ns) {
  const bool all = std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.hello; });
  if (state_ != v1::JOB_STATE_PROFILING || measuring_ || !all) {
    return {};
  }
  std::vector<ProfileCandidate> candidates = ProfileCandidates(job_, run_, workers_.size());
  if (candidates.empty()) {
    return MoveTo(v1::JOB_STATE_PLANNING, "the worker is up and its costs are given: there is nothing to measure");
  }
  measuring_ = true;
  rounds_ = ProfileRounds(std::move(candidates), allocation_.workers());
  return {.sends = ProfileRound(now_ns)};
}

// Heartbeats and hellos of an agent tell what reports will tell, or have told before a restart. A hello that comes late
// may tell of an earlier epoch.
void JobRun::TakeStatus(Worker& worker, const v1::WorkerStatus& status) {
  if (status.phase() == v1::WORKER_PHASE_UNSPECIFIED || status.epoch() < worker.epoch) {
    return;
  }
  worker.epoch = status.epoch();
  worker.phase = status.phase();
  worker.next_iteration = status.next_iteration();
  if (epoch_.has_value() && status.epoch() == epoch_->number && status.phase() == v1::WORKER_PHASE_FINISHED) {
    worker.finished = true;
  }
  NoteReached(status.next_iteration());
}

Reaction JobRun::OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report) {
  if (state_ != v1::JOB_STATE_PROFILING || !measuring_) {
    return {};
  }
  const absl::StatusOr<Measurement> measurement = MeasurementOf(report);
  if (!measurement.ok()) {
    return FailWith(
        fmt::format("worker {} measured nonsense: {}", DisplayName(key), std::string(measurement.status().message())));
  }
  workers_.at(key).phase = v1::WORKER_PHASE_IDLE;
  if (report.round() == 0 && !job_.checkpoint.path.empty()) {
    std::vector<CheckpointIdentity>& found = found_checkpoints_[key.node_key()];
    found.clear();
    for (const v1::CheckpointIdentity& each : report.checkpoints()) {
      found.push_back(FromProto(each).value_or(CheckpointIdentity{}));  // it has been validated
    }
  }
  const absl::StatusOr<bool> round_done = rounds_.OnReport(key, report.round(), *measurement);
  if (!round_done.ok()) {
    return FailWith(round_done.status());
  }
  if (!*round_done) {
    return {};
  }
  if (!rounds_.done()) {
    return {.sends = ProfileRound(now_ns)};
  }
  return OnProfiled();
}

Reaction JobRun::OnProfiled() {
  if (!job_.checkpoint.path.empty()) {
    absl::StatusOr<std::optional<CheckpointIdentity>> chosen = ChooseCheckpoint(
        job_.checkpoint.path, run_.resume, found_checkpoints_, EndIteration(job_, run_), job_.search.sequence_length);
    if (!chosen.ok()) {
      return FailWith(chosen.status());
    }
    resume_from_ = *chosen;
  }
  return MoveTo(v1::JOB_STATE_PLANNING,
                rounds_.profile().entries.empty()
                    ? fmt::format("all {} workers are up and have measured their transport", workers_.size())
                    : fmt::format("{} measured at {}", Counted(std::ssize(workers_), "device"),
                                  Counted(rounds_.rounds(), "batch shape")));
}

Reaction JobRun::OnPrepared(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerReport& report) {
  if (!epoch_.has_value() || report.epoch() != epoch_->number) {
    return {};
  }
  Advance(worker, v1::WORKER_PHASE_PREPARED);
  if (state_ != v1::JOB_STATE_DEPLOYING) {
    return {};
  }
  const absl::StatusOr<bool> all = rollout_.OnPrepared(key, report.epoch(), report.prepared());
  if (!all.ok()) {
    return FailWith(all.status());
  }
  return *all ? Reaction{.sends = CommitAll(now_ns)} : Reaction{};
}

Reaction JobRun::OnCommitted(Worker& worker, const WorkerKey& key, const v1::WorkerReport& report) {
  if (state_ != v1::JOB_STATE_DEPLOYING || report.epoch() != epoch_->number) {
    return {};
  }
  const absl::StatusOr<bool> all = rollout_.OnCommitted(key, report.epoch(), report.committed());
  if (!all.ok()) {
    return FailWith(all.status());
  }
  Advance(worker, v1::WORKER_PHASE_TRAINING);
  if (!*all) {
    return {};
  }
  return MoveTo(v1::JOB_STATE_RUNNING,
                fmt::format("all {} ranks have committed epoch {}", members_.size(), epoch_->number));
}

// A rank that has committed begins at once, so its first reports may overtake the last CommittedReport.
Reaction JobRun::OnIteration(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::IterationReport& report) {
  if (RankOf(key) != report.rank() || report.iteration() >= EndIteration(job_, run_) ||
      report.iteration() < epoch_->first_iteration) {
    return {};
  }
  worker.next_iteration = std::max(worker.next_iteration, report.iteration() + 1);
  NoteReached(report.iteration() + 1);
  Reaction reaction{.iterations_finished = iterations_.OnReport(report)};
  if (reaction.iterations_finished > 0) {
    reaction.traffic = NewTraffic();
    reaction.change = Over();
  }
  told_ns_ = now_ns;
  NoteProgress(now_ns);
  return reaction;
}

std::vector<TrafficObservation> JobRun::NewTraffic() {
  const std::deque<v1::IterationTimeline>& timelines = iterations_.timelines();
  if (timelines.empty() || timelines.back().iteration() <= observed_iteration_) {
    return {};
  }
  observed_iteration_ = timelines.back().iteration();
  return ObserveTraffic(timelines.back(), plan_->plan, plan_->costs);
}

Reaction JobRun::OnFinished(Worker& worker, const WorkerKey& key, const v1::FinishedReport& report) {
  if (RankOf(key) != report.rank()) {
    return {};
  }
  const int64_t end = EndIteration(job_, run_);
  if (report.iterations() != end) {
    return FailWith(fmt::format("worker {} (rank {}) stopped after {} of {} iterations", DisplayName(key),
                                report.rank(), report.iterations(), end));
  }
  worker.finished = true;
  Advance(worker, v1::WORKER_PHASE_FINISHED);
  worker.next_iteration = end;
  Reaction reaction{.iterations_finished = iterations_.OnRankAt(report.rank(), end)};
  reaction.change = Over();
  return reaction;
}

// The first member to end tells where: no other can finish an iteration from there on. `reported`: by the report that
// comes after those of its iterations.
Reaction JobRun::OnEnded(int64_t now_ns, Worker& worker, const WorkerKey& key, int64_t next_iteration, bool reported) {
  const int32_t rank = RankOf(key);
  if (rank < 0 || ended_at_.has_value()) {
    return {};
  }
  if (!ending_) {
    diagnosis_.Add(now_ns,
                   {.worth = FailureEvidence::Worth::kUnexplained,
                    .sentence = fmt::format("worker {} (site {}) has ended epoch {} before iteration {}; why it "
                                            "did was lost with an earlier process of the coordinator",
                                            DisplayName(key), key.site, epoch_->number, next_iteration)});
    return Diagnose(now_ns, false);
  }
  Advance(worker, v1::WORKER_PHASE_ENDED);
  worker.finished = next_iteration == EndIteration(job_, run_);
  worker.next_iteration = next_iteration;
  Reaction reaction;
  if (reported) {
    reaction.iterations_finished = iterations_.OnRankAt(rank, next_iteration);
  }
  if (!ends_at_.has_value()) {
    ends_at_ = next_iteration;
    reaction.sends = EndAll();
  }
  reaction.change = Over();
  return reaction;
}

// Workers repeat what they have found, so that none of it has to outlive this coordinator.
Reaction JobRun::OnDataCheck(Worker& worker, const WorkerKey& key, const v1::DataCheckReport& report) {
  worker.data_check = report;
  for (const auto& [other, each] : workers_) {
    const std::optional<DataDifference> difference =
        other == key || each.stopped ? std::nullopt : FirstDifference(each.data_check, report);
    if (difference.has_value()) {
      return FailWith(DifferenceSentence(DisplayName(std::min(key, other)), DisplayName(std::max(key, other)),
                                         job_.data, *difference));
    }
  }
  return {};
}

// All members have left the epoch, and what they did in it is told: reports of it that come later would be of no epoch.
std::optional<Reaction::Change> JobRun::Over() {
  const int64_t end = EndIteration(job_, run_);
  if (state_ != v1::JOB_STATE_RUNNING || ended_at_.has_value()) {
    return std::nullopt;
  }
  if (AllFinished() && iterations_.next() >= end) {
    return LastSaved() ? std::optional(Reaction::Change{v1::JOB_STATE_COMPLETED, DoneSentence(end)}) : std::nullopt;
  }
  if (!ends_at_.has_value() || iterations_.next() < *ends_at_ || !AllLeft() || diagnosis_.pending()) {
    return std::nullopt;
  }
  ended_at_ = ends_at_;
  return Reaction::Change{v1::JOB_STATE_PAUSED, fmt::format("paused before iteration {}", *ended_at_)};
}

void JobRun::Advance(Worker& worker, v1::WorkerPhase phase) const {
  worker.phase = worker.epoch == epoch_->number ? std::max(worker.phase, phase) : phase;
  worker.epoch = epoch_->number;
}

bool JobRun::HasLeft(const Worker& worker) const {
  return worker.epoch == epoch_->number &&
         (worker.phase == v1::WORKER_PHASE_ENDED || worker.phase == v1::WORKER_PHASE_FINISHED);
}

bool JobRun::AllLeft() const {
  return std::ranges::all_of(members_, [&](const EpochMember& member) { return HasLeft(workers_.at(member.worker)); });
}

Reaction JobRun::OnFailure(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::FailureReport& report) {
  if (report.parked() && ending_ && !end_held_) {  // the others have left as they were told to, before it heard of that
    return OnEnded(now_ns, worker, key, report.next_iteration(), true);
  }
  worker.failed = true;
  if (report.parked()) {
    Advance(worker, v1::WORKER_PHASE_ENDED);
    worker.next_iteration = report.next_iteration();
  }
  diagnosis_.Add(now_ns, EvidenceOf(key, report));
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnExit(int64_t now_ns, const WorkerKey& key, const v1::WorkerExit& exit) {
  const auto found = workers_.find(key);
  if (found == workers_.end() || found->second.stopped) {
    return {};
  }
  found->second.exited = true;
  const bool orderly = found->second.finished && exit.signal() == 0 && exit.exit_code() == 0;
  if (orderly) {
    return {};
  }
  // A worker that has told why stops by itself afterwards: that exit is no news.
  if (exit.signal() != 0 || !found->second.failed) {
    diagnosis_.Add(now_ns, EvidenceOf(key, exit));
  }
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnSilent(int64_t now_ns, const WorkerKey& key, const v1::WorkerSilent& silent) {
  diagnosis_.Add(
      now_ns, {.worth = FailureEvidence::Worth::kRoot,
               .sentence = fmt::format("worker {} (site {}, pid {}) lives and has said nothing for {}: it is "
                                       "stopped or stuck",
                                       DisplayName(key), key.site, silent.pid(), FormatSeconds(silent.silent_ns()))});
  return Diagnose(now_ns, false);
}

Reaction JobRun::OnHeartbeat(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status) {
  TakeStatus(worker, status);
  NoteProgress(now_ns);
  Reaction settled = Settle(now_ns, worker, key);
  return settled.change.has_value() || !settled.sends.empty() ? std::move(settled)
                                                              : CheckStuck(now_ns, worker, key, status);
}

Reaction JobRun::Settle(int64_t now_ns, Worker& worker, const WorkerKey& key) {
  if (std::optional<Reaction::Change> change = Over(); change.has_value()) {
    return {.change = std::move(change)};
  }
  if (state_ == v1::JOB_STATE_RUNNING && worker.epoch == epoch_->number && worker.phase == v1::WORKER_PHASE_ENDED &&
      !worker.failed) {
    return OnEnded(now_ns, worker, key, worker.next_iteration, false);
  }
  return Decide();
}

// A compute action takes what the plan says, not many times that. One that is only waiting for messages is not under
// way. Told twice: after a pause of the whole host the first word of it means nothing.
Reaction JobRun::CheckStuck(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status) {
  const int64_t limit_ns = StuckAfterNs(status.action());
  const bool stuck = state_ == v1::JOB_STATE_RUNNING && status.action_ns() >= limit_ns;
  const std::string action = stuck ? fmt::format("{} of iteration {}", status.action(), status.next_iteration()) : "";
  if (!stuck || std::exchange(worker.slow_action, action) != action) {
    worker.slow_action = action;
    return {};
  }
  diagnosis_.Add(now_ns,
                 {.worth = FailureEvidence::Worth::kRoot,
                  .sentence = fmt::format("worker {} (site {}) is stuck: {} has taken {} so far and should take "
                                          "{} at most",
                                          DisplayName(key), key.site, ToUtf8(action), FormatSeconds(status.action_ns()),
                                          FormatSeconds(limit_ns))});
  return Diagnose(now_ns, false);
}

int64_t JobRun::StuckAfterNs(std::string_view text) const {
  const absl::StatusOr<Action> action = ParseAction(text);
  int64_t planned_ns = 0;
  if (plan_ != nullptr && action.ok() && action->stage >= 0 && action->stage < plan_->costs.shape.stages) {
    planned_ns = std::max(plan_->costs.forward_ns[action->stage], plan_->costs.BackwardNs(action->stage));
  }
  return std::max(limits_.stuck_after_ns, 10 * planned_ns);
}

// --- Agents -------------------------------------------------------------------------------------------------------

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
    } else if (worker.hello && !worker.finished) {
      diagnosis_.Add(now_ns, {.worth = FailureEvidence::Worth::kUnexplained,
                              .sentence = fmt::format("worker {} (site {}) is gone: its agent came back without it",
                                                      DisplayName(key), key.site)});
    }
  }
  NoteProgress(now_ns);
  if (Reaction reaction = Diagnose(now_ns, false); reaction.change.has_value()) {
    return reaction;
  }
  if (Reaction reaction = BeginMeasuring(now_ns); !reaction.sends.empty() || reaction.change.has_value()) {
    return reaction;
  }
  for (const WorkerKey& key : returned) {
    if (Reaction reaction = Settle(now_ns, workers_.at(key), key);
        reaction.change.has_value() || !reaction.sends.empty()) {
      return reaction;
    }
  }
  return {};
}

void JobRun::Hear(std::span<const NodeSilence> nodes) {
  silent_.clear();
  std::ranges::transform(nodes, std::back_inserter(silent_), &NodeSilence::node);
}

Reaction JobRun::OnTick(int64_t now_ns, std::span<const NodeSilence> nodes) {
  // A node whose silence matters: the job cannot go on without it, and nobody tells that it goes on.
  const bool needs_nodes = state_ != v1::JOB_STATE_PLANNING && state_ != v1::JOB_STATE_PAUSED;
  // With none of them there is no telling: it may be this process that is cut off, and the workers go on.
  const bool unheard = nodes.size() == nodes_.size();
  const int64_t last_ns = std::exchange(last_tick_ns_, now_ns);
  const int64_t passed_ns = last_ns == 0 ? 0 : now_ns - last_ns;
  if (unheard) {
    Forgive(passed_ns);
    return diagnosis_.pending() ? Diagnose(now_ns, true) : Reaction{};
  }
  if (needs_nodes && !nodes.empty() && deadline_ns_ != kNoDeadlineNs) {
    deadline_ns_ += passed_ns;  // who is silent can answer nothing, and has a grace of its own
  }
  for (const NodeSilence& silence : nodes) {
    const int64_t quiet_ns = std::min(silence.silent_ns, now_ns - progress_ns_);
    if (!needs_nodes || quiet_ns < GraceNs(silence, AllDone())) {
      continue;
    }
    std::vector<WorkerKey> workers;
    for (const auto& [key, worker] : workers_) {
      if (key.node_key() == silence.node && !worker.stopped) {
        workers.push_back(key);
      }
    }
    diagnosis_.Add(
        now_ns, {.worth = FailureEvidence::Worth::kRoot,
                 .sentence = fmt::format("agent {} (site {}) has not been heard from for {}, and the job makes no "
                                         "progress; its workers: {}",
                                         DisplayName(silence.node), silence.node.site, FormatSeconds(silence.silent_ns),
                                         DisplayNames(workers))});
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
  if (Reaction reaction = SaveLast(now_ns); !reaction.sends.empty()) {
    return reaction;
  }
  // All have left the epoch, are there, and say no more: what is missing of their reports was lost.
  constexpr int64_t kLastWordsNs = 120'000'000'000;
  if (state_ == v1::JOB_STATE_RUNNING && !members_.empty() && AllLeft() && nodes.empty() &&
      now_ns - std::max(told_ns_, progress_ns_) >= kLastWordsNs && iterations_.next() < reached_) {
    return TellAll();
  }
  if (AllDone() && AllFinished() && iterations_.next() >= reached_) {
    return {};  // it waits for its last checkpoint, for as long as that takes
  }
  return now_ns >= deadline_ns_ ? FailWith(DeadlineSentence()) : Reaction{};
}

// --- Epochs -------------------------------------------------------------------------------------------------------

Reaction JobRun::Diagnose(int64_t now_ns, bool more_may_come) {
  loss_ = diagnosis_.Verdict(now_ns, limits_.failure_grace_ns, more_may_come);
  return loss_.has_value() ? Decide() : Reaction{};
}

EpochFacts JobRun::Facts() const {
  EpochFacts facts{.wanted = !pause_wanted_ && !secret_.empty() && (silent_.empty() || state_ != v1::JOB_STATE_PAUSED),
                   .members = members_,
                   .workers = {},
                   .end_iteration = EndIteration(job_, run_),
                   .secret = secret_,
                   .resume_from = resume_from_};
  for (const auto& [key, worker] : workers_) {
    if (!worker.stopped) {
      facts.workers.push_back({.worker = {key, worker.incarnation},
                               .attached = worker.hello,
                               .lost = loss_,
                               .epoch = worker.epoch,
                               .phase = worker.phase,
                               .next_iteration = worker.next_iteration});
    }
  }
  return facts;
}

Reaction JobRun::Decide() {
  const bool between = state_ == v1::JOB_STATE_PLANNING || state_ == v1::JOB_STATE_PAUSED;
  EpochDecision decision = NextEpoch(epoch_, Facts());
  switch (decision.kind) {
    case EpochDecision::Kind::kWait:
      return {};
    case EpochDecision::Kind::kFail:
      return FailWith(std::move(decision.reason));
    case EpochDecision::Kind::kNew:
      break;
  }
  if (!between) {
    return {};
  }
  secret_.clear();
  epoch_ = std::move(decision.epoch);
  ended_at_.reset();
  ends_at_.reset();
  ending_ = end_due_ = false;
  std::vector<WorkerKey> ranks;
  for (const EpochMember& member : epoch_->members) {
    ranks.push_back(member.worker);
    workers_.at(member.worker).finished = false;
  }
  rollout_ = PlanRollout(epoch_->number, std::move(ranks));
  MarkIdle();
  iterations_.BeginEpoch(epoch_->number, epoch_->first_iteration);
  checkpoints_.BeginEpoch(*epoch_, incarnation_, plan_->plan.sequence_length);
  return MoveTo(v1::JOB_STATE_DEPLOYING, epoch_->number == 1 ? PlanSentence(*plan_)
                                                             : fmt::format("epoch {} goes on from iteration {}",
                                                                           epoch_->number, epoch_->first_iteration));
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
    ending_ = end_due_ = false;
    return {};
  }
  secret_ = std::move(secret);
  return Decide();
}

// --- Checkpoints --------------------------------------------------------------------------------------------------

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
    last_checkpoint_ = std::max(last_checkpoint_, reaction.checkpoint->identity.iteration);
    checkpoint_trouble_.clear();
    reaction.change = Over();
  }
  return reaction;
}

bool JobRun::LastSaved() const { return job_.checkpoint.path.empty() || last_checkpoint_ >= EndIteration(job_, run_); }

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
    if (last_checkpoint_ < *ended_at_ && !checkpoints_.Pending(*ended_at_)) {
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

// Tells what has been done, though reports of it are missing.
Reaction JobRun::TellAll() {
  Reaction reaction;
  for (int32_t rank = 0; rank < std::ssize(members_); ++rank) {
    reaction.iterations_finished += iterations_.OnRankAt(rank, workers_.at(members_[rank].worker).next_iteration);
  }
  reaction.change = Over();
  return reaction;
}

// Some rank has finished all iterations below `next`, so every rank has taken part in them.
void JobRun::NoteReached(int64_t next) {
  if (next > reached_) {
    reached_ = next;
    progressed_ = true;
  }
}

void JobRun::NoteProgress(int64_t now_ns) {
  if (std::exchange(progressed_, false)) {
    progress_ns_ = now_ns;
    if (state_ == v1::JOB_STATE_RUNNING) {
      SetDeadline(now_ns);
    }
  }
}

}  // namespace geopipe
