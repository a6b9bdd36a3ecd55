// Reactions of a run to reports of its workers and their agents.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "coordinator/core/cluster/link_traffic.h"
#include "coordinator/core/job_run/job_run.h"
#include "coordinator/core/telemetry/data_agreement.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {
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
      // A failure in an older epoch is no news, except from a worker that cannot go on at all, which reports it with
      // whichever epoch it knows.
      return of_epoch || !report.failure().parked() ? OnFailure(now_ns, worker, key, report.failure()) : Reaction{};
    case v1::WorkerReport::kIteration:
      return of_epoch ? OnIteration(now_ns, worker, key, report.iteration()) : Reaction{};
    case v1::WorkerReport::kEvaluation:
      return of_epoch ? OnEvaluation(now_ns, key, report.evaluation()) : Reaction{};
    case v1::WorkerReport::kFinished:
      return of_epoch ? OnFinished(worker, key, report.finished()) : Reaction{};
    case v1::WorkerReport::kEnded:
      worker.states = of_epoch ? StatesOf(report.ended().states()) : worker.states;
      return of_epoch ? OnEnded(now_ns, worker, key, report.ended().next_iteration(), true) : Reaction{};
    case v1::WorkerReport::kCheckpoint:
      if (IsOldNews(report.checkpoint().iteration())) {
        return {};
      }
      return Carry(now_ns, report.checkpoint().iteration(),
                   checkpoints_.OnFiles(now_ns, key, report.epoch(), report.checkpoint()));
    case v1::WorkerReport::kManifest:
      return Carry(now_ns, report.manifest().iteration(),
                   checkpoints_.OnManifest(now_ns, key, report.epoch(), report.manifest()));
    case v1::WorkerReport::kReplica:
      return Carry(now_ns, report.replica().iteration(), checkpoints_.OnCopied(key, report.epoch(), report.replica()));
    case v1::WorkerReport::kDataCheck:  // of whichever epoch: the data is that of the run
      return OnDataCheck(worker, key, report.data_check());
    case v1::WorkerReport::kHeartbeat:
      return OnHeartbeat(now_ns, worker, key, report.heartbeat().status());
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return {};
}

// A worker that says hello again (to another process of its agent) counts as no younger.
Reaction JobRun::OnHello(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerHello& hello) {
  const bool first = !std::exchange(worker.hello, true);
  if (first && hello.version() != version_) {
    return Reaction::FailWith(
        fmt::format("worker {} is version {} and the coordinator is version {}; install the same on both",
                    DisplayName(key), hello.version(), version_));
  }
  worker.exchange_address = hello.status().exchange_address();
  if (state_ == v1::JOB_STATE_RECOVERING) {
    TakeStatus(worker, hello.status());
    return Decide();
  }
  return BeginMeasuring(now_ns);
}

Reaction JobRun::BeginMeasuring(int64_t now_ns) {
  const bool all = std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.hello; });
  if (state_ != v1::JOB_STATE_PROFILING || measuring_ || !all) {
    return {};
  }
  std::vector<ProfileCandidate> candidates =
      ProfileCandidates(choices_, run_, workers_.size(), StandForDevices(run_, allocation_));
  if (candidates.empty()) {
    return Reaction::MoveTo(v1::JOB_STATE_PLANNING,
                            "the worker is up and its costs are given: there is nothing to measure");
  }
  measuring_ = true;
  rounds_ = ProfileRounds(std::move(candidates), allocation_.workers());
  return {.sends = ProfileRound(now_ns)};
}

// Heartbeats and hellos of an agent say the same as reports that are still to come, or that came before a restart. A
// late hello may concern an earlier epoch.
void JobRun::TakeStatus(Worker& worker, const v1::WorkerStatus& status) {
  if (status.phase() == v1::WORKER_PHASE_UNSPECIFIED || status.epoch() < worker.epoch) {
    return;
  }
  worker.epoch = status.epoch();
  worker.phase = status.phase();
  worker.next_iteration = status.next_iteration();
  worker.states = StatesOf(status.states());
  worker.exchange_address = status.exchange_address();
  if (epoch_.has_value() && status.epoch() == epoch_->number) {
    worker.finished = worker.finished || status.phase() == v1::WORKER_PHASE_FINISHED;
    NoteReached(status.next_iteration());
  }
}

// Keeps the states of this run: memory that outlives a process may hold those of an earlier one.
std::vector<StateIdentity> JobRun::StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const {
  std::vector<StateIdentity> found;
  for (const v1::HeldState& state : states) {
    if (state.run_incarnation() == incarnation_) {
      found.push_back({.iteration = state.iteration(), .epoch = state.epoch()});
    }
  }
  return found;
}

Reaction JobRun::OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report) {
  if (state_ != v1::JOB_STATE_PROFILING || !measuring_) {
    return {};
  }
  const absl::StatusOr<Measurement> measurement = MeasurementOf(report);
  if (!measurement.ok()) {
    return Reaction::FailWith(fmt::format("worker {} sent an invalid measurement: {}", DisplayName(key),
                                          std::string(measurement.status().message())));
  }
  workers_.at(key).phase = v1::WORKER_PHASE_IDLE;
  if (report.round() == 0 && !job_.checkpoint.path.empty()) {
    std::vector<CheckpointIdentity>& found = found_checkpoints_[key.node_key()];
    found.clear();
    for (const v1::CheckpointIdentity& each : report.checkpoints()) {
      found.push_back(FromProto(each).value_or(CheckpointIdentity{}));  // validated before
    }
  }
  const absl::StatusOr<bool> round_done = rounds_.OnReport(key, report.round(), *measurement);
  if (!round_done.ok()) {
    return Reaction::FailWith(round_done.status());
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
  if (!job_.checkpoint.path.empty() && epochs_before_ == 0) {
    absl::StatusOr<std::vector<CheckpointIdentity>> resumable = ResumableCheckpoints(
        job_.checkpoint.path, run_.resume, found_checkpoints_, EndIteration(job_, run_), job_.search.sequence_length);
    if (!resumable.ok()) {
      return Reaction::FailWith(resumable.status());
    }
    resumable_ = *std::move(resumable);
  }
  if (must_find_state_) {
    DropLostParts();
    if (std::ranges::none_of(listed_, [&](const ListedCheckpoint& each) { return each.IsAt(nodes_); })) {
      return Reaction::MoveTo(v1::JOB_STATE_PENDING,
                              "none of its checkpoints is complete on the nodes that it was given");
    }
  }
  return Reaction::MoveTo(v1::JOB_STATE_PLANNING,
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
    return Reaction::FailWith(all.status());
  }
  return *all ? Reaction{.sends = CommitAll(now_ns)} : Reaction{};
}

Reaction JobRun::OnCommitted(Worker& worker, const WorkerKey& key, const v1::WorkerReport& report) {
  if (state_ != v1::JOB_STATE_DEPLOYING || report.epoch() != epoch_->number) {
    return {};
  }
  const absl::StatusOr<bool> all = rollout_.OnCommitted(key, report.epoch(), report.committed());
  if (!all.ok()) {
    return Reaction::FailWith(all.status());
  }
  Advance(worker, v1::WORKER_PHASE_TRAINING);
  if (!*all) {
    return {};
  }
  const std::string mixture = rollout_.Mixture();
  return Reaction::MoveTo(v1::JOB_STATE_RUNNING,
                          fmt::format("all {} ranks have committed epoch {}{}{}", members_.size(), epoch_->number,
                                      mixture.empty() ? "" : "; ", mixture));
}

// A rank that has committed begins at once, so its first reports may overtake the last CommittedReport.
Reaction JobRun::OnIteration(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::IterationReport& report) {
  if (RankOf(key) != report.rank() || report.iteration() >= EndIteration(job_, run_) ||
      report.iteration() < epoch_->first_iteration) {
    return {};
  }
  worker.next_iteration = std::max(worker.next_iteration, report.iteration() + 1);
  NoteReached(report.iteration() + 1);
  if (report.has_peaks()) {
    memory_.Add(report.rank(), report.peaks());
  }
  Reaction reaction{.iterations_finished = iterations_.OnReport(report)};
  if (reaction.iterations_finished > 0) {
    reaction.traffic = NewTraffic();
    reaction.change = Over();
  }
  told_ns_ = now_ns;
  NoteProgress(now_ns);
  return reaction;
}

// A rank that reports it has had all others with it.
Reaction JobRun::OnEvaluation(int64_t now_ns, const WorkerKey& key, const v1::EvaluationReport& report) {
  if (RankOf(key) != report.rank() || report.iteration() < epoch_->first_iteration) {
    return {};
  }
  evaluations_.OnReport(report, epoch_->number);
  told_ns_ = now_ns;
  progressed_ = true;
  NoteProgress(now_ns);
  return {.change = Over()};
}

// A rank reports an evaluation before the iteration that follows it, so that none is to come of iterations that are
// complete.
std::vector<v1::EvaluationSummary> JobRun::TakeEvaluations() {
  evaluations_.GiveUpBefore(std::min(iterations_.next(), EndIteration(job_, run_)));
  return evaluations_.TakeNew();
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
    return Reaction::FailWith(fmt::format("worker {} (rank {}) stopped after {} of {} iterations", DisplayName(key),
                                          report.rank(), report.iterations(), end));
  }
  if (report.has_peaks()) {
    memory_.Add(report.rank(), report.peaks());
  }
  worker.finished = true;
  NoteLastReport(worker);
  worker.states = StatesOf(report.states());
  Advance(worker, v1::WORKER_PHASE_FINISHED);
  worker.next_iteration = end;
  Reaction reaction{.iterations_finished = iterations_.OnRankAt(report.rank(), end)};
  reaction.change = Over();
  return reaction;
}

// The first member to end decides where: no other can finish an iteration from there on. `reported`: by the report that
// follows those of its iterations.
Reaction JobRun::OnEnded(int64_t now_ns, Worker& worker, const WorkerKey& key, int64_t next_iteration, bool reported) {
  const int32_t rank = RankOf(key);
  if (rank < 0 || ended_at_.has_value()) {
    return {};
  }
  if (state_ == v1::JOB_STATE_RECOVERING) {
    Advance(worker, v1::WORKER_PHASE_ENDED);
    worker.next_iteration = next_iteration;
    return Decide();
  }
  if (!ending_) {
    diagnosis_.Add(now_ns, {.worth = FailureEvidence::Worth::kUnexplained,
                            .sentence = fmt::format("worker {} (site {}) has ended epoch {} before iteration {}; the "
                                                    "reason was lost when the coordinator restarted",
                                                    DisplayName(key), key.site, epoch_->number, next_iteration)});
    return Diagnose(now_ns, false);
  }
  Advance(worker, v1::WORKER_PHASE_ENDED);
  worker.finished = next_iteration == EndIteration(job_, run_);
  worker.next_iteration = next_iteration;
  Reaction reaction;
  if (reported) {
    if (worker.finished) {
      NoteLastReport(worker);
    }
    reaction.iterations_finished = iterations_.OnRankAt(rank, next_iteration);
  }
  if (!ends_at_.has_value()) {
    ends_at_ = next_iteration;
    reaction.sends = EndAll();
  }
  reaction.change = Over();
  return reaction;
}

void JobRun::NoteLastReport(Worker& worker) {
  worker.told_all = true;
  if (std::ranges::all_of(members_, [&](const EpochMember& each) { return workers_.at(each.worker).told_all; })) {
    evaluations_.GiveUpBefore(EndIteration(job_, run_) + 1);
  }
}

// Workers repeat their findings, so that none has to outlive this coordinator.
Reaction JobRun::OnDataCheck(Worker& worker, const WorkerKey& key, const v1::DataCheckReport& report) {
  worker.data_check = report;
  for (const auto& [other, each] : workers_) {
    const std::optional<DataDifference> difference =
        other == key || each.stopped ? std::nullopt : FirstDifference(each.data_check, report);
    if (difference.has_value()) {
      return Reaction::FailWith(DifferenceSentence(DisplayName(std::min(key, other)), DisplayName(std::max(key, other)),
                                                   job_.data, *difference));
    }
  }
  return {};
}

// All members have left the epoch, and its iterations are reported: later reports of it would belong to no epoch.
std::optional<Reaction::Change> JobRun::Over() {
  const int64_t end = EndIteration(job_, run_);
  if (state_ != v1::JOB_STATE_RUNNING || ended_at_.has_value()) {
    return std::nullopt;
  }
  if (AllFinished() && iterations_.next() >= end) {
    if (evaluations_.next() <= end) {
      return std::nullopt;  // its report is on its way
    }
    return LastSaved() ? std::optional(Reaction::Change{v1::JOB_STATE_COMPLETED, DoneSentence(end)}) : std::nullopt;
  }
  if (!ends_at_.has_value() || iterations_.next() < *ends_at_ || !AllLeft() || diagnosis_.pending()) {
    return std::nullopt;
  }
  ended_at_ = ends_at_;
  if (moving_ && !pause_wanted_) {
    return Reaction::Change{v1::JOB_STATE_REPLANNING,
                            fmt::format("{}; its ranks rest before iteration {}", move_cause_, *ended_at_)};
  }
  moving_ = false;
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

bool JobRun::SomeLeft() const {
  return epoch_.has_value() &&
         std::ranges::any_of(members_, [&](const EpochMember& member) { return HasLeft(workers_.at(member.worker)); });
}

Reaction JobRun::OnHeartbeat(int64_t now_ns, Worker& worker, const WorkerKey& key, const v1::WorkerStatus& status) {
  TakeStatus(worker, status);
  NoteProgress(now_ns);
  Reaction settled = Settle(now_ns, worker, key);
  return settled.change.has_value() || !settled.sends.empty() || settled.wants_secret
             ? std::move(settled)
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

// Some rank has finished all iterations below `next`, so every rank has taken part in them.
void JobRun::NoteReached(int64_t next) {
  if (next > reached_) {
    reached_ = next;
    progressed_ = run_progressed_ = true;
    restarts_.OnProgress();
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
