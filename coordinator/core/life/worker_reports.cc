#include "coordinator/core/life/worker_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "coordinator/cluster/link_traffic.h"
#include "coordinator/core/telemetry/data_agreement.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/base/utf8.h"
#include "runtime/base/version.h"

namespace geopipe {
namespace {

using Stage = WorkerFacts::Stage;

}  // namespace

Reaction WorkerReports::OnReport(const WorkerKey& key, const v1::WorkerReport& report, const std::string& version) {
  if (!life_.Has(key)) {
    return {};
  }
  WorkerFacts& worker = crew_.workers.at(key);
  if (report.has_iteration() || report.has_evaluation()) {
    NoteEpochOf(report.epoch());  // else its figures would be those of no epoch
  }
  const bool of_epoch = life_.epoch.has_value() && report.epoch() == life_.epoch->number;
  switch (report.report_case()) {
    case v1::WorkerReport::kHello:
      OnHello(worker, report.hello(), version);
      return {};
    case v1::WorkerReport::kProfile:
      OnProfile(key, report.profile());
      return {};
    case v1::WorkerReport::kPrepared:
    case v1::WorkerReport::kCommitted:
      return of_epoch ? OnAnswer(worker, report) : Reaction{};
    case v1::WorkerReport::kFailure:
      // A failure in an older epoch is no news, except from a worker that cannot go on at all, which reports it with
      // whichever epoch it knows.
      return of_epoch || !report.failure().parked() ? OnFailure(worker, report.failure()) : Reaction{};
    case v1::WorkerReport::kIteration:
      return of_epoch ? OnIteration(worker, report.iteration()) : Reaction{};
    case v1::WorkerReport::kEvaluation:
      if (of_epoch) {
        OnEvaluation(key, report.evaluation());
      }
      return {};
    case v1::WorkerReport::kFinished:
      return of_epoch ? OnFinished(worker, report.finished()) : Reaction{};
    case v1::WorkerReport::kEnded:
      worker.states = of_epoch ? StatesOf(report.ended().states()) : worker.states;
      return of_epoch ? OnEnded(worker, report.ended().next_iteration(), true) : Reaction{};
    case v1::WorkerReport::kCheckpoint:
    case v1::WorkerReport::kManifest:
    case v1::WorkerReport::kReplica:
      return OnCheckpoint(key, report);
    case v1::WorkerReport::kDataCheck:  // of whichever epoch: the data is that of the run
      OnDataCheck(key, report.data_check());
      return {};
    case v1::WorkerReport::kHeartbeat:
      TakeStatus(worker, report.heartbeat().status());
      NoteProgress();
      Settle(worker);
      CheckStuck(worker, report.heartbeat().status());
      return {};
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return {};
}

// --- Up to the first iteration ------------------------------------------------------------------------------------

// Notes a start that came to nothing: what is installed on the node does not fit, or what its run began with no longer.
void WorkerReports::OnMisfit(WorkerFacts& worker, const v1::WorkerHello& hello, const std::string& version) {
  const WorkerKey& key = worker.worker.worker;
  worker.trouble = fmt::format(
      "worker {} (site {}) is version {} (wire version {}) and the coordinator is version {} (wire version {}), which "
      "do not work together; install the same version on both, and where the job began with another one apply it again "
      "with --resume",
      DisplayName(key), key.site, ToUtf8(hello.version()), hello.wire_version(), version, kWireVersion);
  worker.of_node = true;
  crew_.diagnosis.Add(
      now_ns_, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "unfit", .of_node = true});
}

// A worker that says hello again (to another process of its agent) counts as no younger.
void WorkerReports::OnHello(WorkerFacts& worker, const v1::WorkerHello& hello, const std::string& version) {
  const bool fits = hello.wire_version() == 0 ? hello.version() == version : SpeaksWireVersion(hello.wire_version());
  if (worker.stage == Stage::kStarting && !fits) {
    if (life_.posts.at(worker.worker.worker).duty == Post::Duty::kServes) {
      OnMisfit(worker, hello, version);
    }
    return;
  }
  worker.stage = Stage::kAttached;
  worker.sight = WorkerFacts::Sight::kSeen;  // it may have been started since its agent returned
  life_.posts.at(worker.worker.worker).exchange_address = hello.status().exchange_address();
  if (life_.state == v1::JOB_STATE_RECOVERING) {
    TakeStatus(worker, hello.status());
  }
}

void WorkerReports::OnProfile(const WorkerKey& key, const v1::ProfileReport& report) {
  if (life_.state != v1::JOB_STATE_PROFILING || !crew_.measuring) {
    return;
  }
  const absl::StatusOr<Measurement> measurement = MeasurementOf(report);
  if (!measurement.ok()) {
    crew_.fault = fmt::format("worker {} sent an invalid measurement: {}", DisplayName(key),
                              std::string(measurement.status().message()));
    return;
  }
  crew_.workers.at(key).phase = v1::WORKER_PHASE_IDLE;
  if (report.round() == 0 && !life_.job.checkpoint.path.empty()) {
    std::vector<CheckpointIdentity>& found = crew_.found_checkpoints[key.node_key()];
    found.clear();
    for (const v1::CheckpointIdentity& each : report.checkpoints()) {
      found.push_back(FromProto(each).value_or(CheckpointIdentity{}));  // validated before
    }
  }
  const absl::StatusOr<bool> round_done = crew_.rounds.OnReport(key, report.round(), *measurement);
  if (!round_done.ok()) {
    crew_.fault = std::string(round_done.status().message());
  } else if (*round_done && crew_.rounds.done()) {
    TakeFoundCheckpoints();
  } else if (*round_done) {
    crew_.BeginPhase(now_ns_);
  }
}

void WorkerReports::TakeFoundCheckpoints() {
  if (!life_.job.checkpoint.path.empty() && life_.epochs_before == 0) {
    absl::StatusOr<std::vector<CheckpointIdentity>> resumable =
        ResumableCheckpoints(life_.job.checkpoint.path, life_.run.resume, crew_.found_checkpoints, life_.end(),
                             life_.job.search.sequence_length);
    if (!resumable.ok()) {
      crew_.fault = std::string(resumable.status().message());
      return;
    }
    life_.checkpoints.resumable = *std::move(resumable);
  }
  for (const auto& [node, found] : crew_.found_checkpoints) {
    for (const CheckpointIdentity& each : found) {
      if (life_.last_worker_before > 0 && each.incarnation > life_.last_worker_before) {
        crew_.fault = fmt::format(
            "node {} has a checkpoint of iteration {} of a later run of this job than the job store knows, which is "
            "older than the job; give the coordinator its newest store, or apply the job again with --resume",
            DisplayName(node), each.iteration);
        return;
      }
    }
  }
  if (life_.must_find_state) {
    life_.checkpoints.DropLostParts(crew_.found_checkpoints);
  }
}

Reaction WorkerReports::OnAnswer(WorkerFacts& worker, const v1::WorkerReport& report) {
  const bool is_prepared = report.has_prepared();
  const bool is_deploying = life_.state == v1::JOB_STATE_DEPLOYING;
  if (is_prepared || is_deploying) {
    worker.Advance(life_.epoch->number, is_prepared ? v1::WORKER_PHASE_PREPARED : v1::WORKER_PHASE_TRAINING);
  }
  if (!is_deploying) {
    return {};
  }
  const WorkerKey& key = worker.worker.worker;
  Reaction reaction;
  if (const std::string& trouble = report.prepared().checkpoint_trouble(); !trouble.empty()) {
    reaction.checkpoint_trouble =
        fmt::format("worker {} (site {}) writes no checkpoint: {}", DisplayName(key), key.site, ToUtf8(trouble));
  } else if (is_prepared && !life_.job.checkpoint.path.empty()) {
    life_.checkpoints.marked.insert(key.node_key());  // durable with the epoch's commit
  }
  const absl::StatusOr<bool> all = is_prepared ? crew_.rollout.OnPrepared(key, report.epoch(), report.prepared())
                                               : crew_.rollout.OnCommitted(key, report.epoch(), report.committed());
  if (!all.ok()) {
    crew_.fault = std::string(all.status().message());
  } else if (*all && is_prepared) {
    crew_.BeginPhase(now_ns_);
  }
  return reaction;
}

// --- Iterations ---------------------------------------------------------------------------------------------------

// A rank that has committed begins at once, so its first reports may overtake the last CommittedReport.
Reaction WorkerReports::OnIteration(WorkerFacts& worker, const v1::IterationReport& report) {
  if (life_.RankOf(worker.worker.worker) != report.rank() || report.iteration() >= life_.end() ||
      report.iteration() < life_.epoch->first_iteration) {
    return {};
  }
  worker.next_iteration = std::max(worker.next_iteration, report.iteration() + 1);
  NoteReached(report.iteration() + 1);
  if (report.has_peaks()) {
    told_.memory.Add(report.rank(), report.peaks());
  }
  Reaction reaction{.iterations_finished = told_.iterations.OnReport(report)};
  const std::deque<v1::IterationTimeline>& timelines = told_.iterations.timelines();
  if (reaction.iterations_finished > 0 && !timelines.empty() &&
      timelines.back().iteration() > told_.observed_iteration) {
    told_.observed_iteration = timelines.back().iteration();
    reaction.traffic = ObserveTraffic(timelines.back(), life_.plan->plan, life_.plan->costs);
  }
  crew_.times.told_ns = now_ns_;
  NoteProgress();
  return reaction;
}

// A rank that reports it has had all others with it.
void WorkerReports::OnEvaluation(const WorkerKey& key, const v1::EvaluationReport& report) {
  if (life_.RankOf(key) != report.rank() || report.iteration() < life_.epoch->first_iteration) {
    return;
  }
  told_.evaluations.OnReport(report, life_.epoch->number);
  crew_.times.told_ns = now_ns_;
  crew_.times.progressed = true;
  NoteProgress();
}

Reaction WorkerReports::OnFinished(WorkerFacts& worker, const v1::FinishedReport& report) {
  const WorkerKey& key = worker.worker.worker;
  if (life_.RankOf(key) != report.rank()) {
    return {};
  }
  const int64_t end = life_.end();
  if (report.iterations() != end) {
    crew_.fault = fmt::format("worker {} (rank {}) stopped after {} of {} iterations", DisplayName(key), report.rank(),
                              report.iterations(), end);
    return {};
  }
  if (report.has_peaks()) {
    told_.memory.Add(report.rank(), report.peaks());
  }
  worker.states = StatesOf(report.states());
  worker.Advance(life_.epoch->number, v1::WORKER_PHASE_FINISHED);
  worker.next_iteration = end;
  worker.failed = false;
  NoteReached(end);
  NoteLastReport(worker);
  return {.iterations_finished = told_.iterations.OnRankAt(report.rank(), end)};
}

// A compute action should take as long as planned, not many times that; one that only waits for messages is not under
// way. Nor should a worker take long to abandon an iteration, whatever it waits for, or have other orders wait for one
// longer than a preparation may take. It counts when two heartbeats in a row report it: after a pause of the whole host
// the first one means nothing.
void WorkerReports::CheckStuck(WorkerFacts& worker, const v1::WorkerStatus& status) {
  const int64_t limit_ns = Here().StuckAfterNs(status.action());
  const bool stuck = status.action_ns() >= limit_ns;
  const std::string action = stuck ? fmt::format("{} of iteration {}", status.action(), status.next_iteration()) : "";
  if (!stuck || std::exchange(worker.slow_action, action) != action) {
    worker.slow_action = action;
    return;
  }
  const WorkerKey& key = worker.worker.worker;
  worker.of_node = worker.of_peer = false;
  worker.trouble =
      fmt::format("worker {} (site {}) is stuck: {} has taken {} so far and should take {} at most", DisplayName(key),
                  key.site, ToUtf8(action), FormatSeconds(status.action_ns()), FormatSeconds(limit_ns));
  crew_.diagnosis.Add(now_ns_, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "stuck"});
}

// --- Failures -----------------------------------------------------------------------------------------------------

Reaction WorkerReports::OnFailure(WorkerFacts& worker, const v1::FailureReport& report) {
  if (report.parked()) {
    worker.states = StatesOf(report.states());
  }
  if (report.parked() && life_.ending) {  // the others have left as they were told to, before it heard of that
    return OnEnded(worker, report.next_iteration(), true);
  }
  worker.failed = !report.parked();  // a parked one lives on, so its exit is news
  FailureEvidence evidence = EvidenceOf(worker.worker.worker, report);
  if (report.has_unreadable()) {
    const bool goes_on = PassOver(report, evidence.sentence);
    if (!crew_.lacking.empty()) {
      return {};
    }
    evidence.kind = goes_on ? "unreadable" : evidence.kind;
    evidence.permanent = evidence.permanent && !goes_on;
  }
  if (report.parked()) {
    worker.Advance(life_.epoch->number, v1::WORKER_PHASE_ENDED);
    worker.next_iteration = report.next_iteration();
  } else {
    worker.trouble = evidence.sentence;
    worker.of_node = evidence.of_node && Here().HasTrained();
    worker.of_peer = evidence.worth == FailureEvidence::Worth::kConsequence && Here().HasTrained();
  }
  crew_.diagnosis.Add(now_ns_, std::move(evidence));
  return {};
}

// Notes that a file of it could not be read, though nobody has found it damaged: a disk or a mount may be back in a
// moment, and another node is waited for longer than the worker's own. True when it is passed over from now on, for a
// while; it stays listed. A file that is not there is not waited for. Where an older one cannot be read either the node
// is at fault and not the newest, which is tried as long again before the next.
bool WorkerReports::NoteUnread(const CheckpointIdentity& checkpoint, absl::StatusCode code) {
  const bool is_missing = code == absl::StatusCode::kNotFound;
  const int64_t patience_ns = code == absl::StatusCode::kUnavailable ? 60'000'000'000 : 20'000'000'000;
  constexpr int64_t kPassOverNs = 600'000'000'000;
  std::erase_if(crew_.unread, [&](const Unread& each) { return now_ns_ - each.since_ns >= 2 * kPassOverNs; });
  auto found = std::ranges::find(crew_.unread, checkpoint, &Unread::checkpoint);
  if (found == crew_.unread.end()) {
    found = crew_.unread.insert(found, {.checkpoint = checkpoint, .since_ns = now_ns_});
  }
  const auto newer = std::ranges::max_element(crew_.unread, {}, [&](const Unread& each) {
    return each.passed_over_until_ns > now_ns_ ? each.checkpoint.iteration : 0;
  });
  const bool is_second = newer->passed_over_until_ns > now_ns_ && newer->checkpoint.iteration > checkpoint.iteration;
  if (!is_missing && is_second) {
    *newer = {.checkpoint = newer->checkpoint, .since_ns = now_ns_};
  } else if (!is_missing && now_ns_ - found->since_ns < patience_ns) {
    return false;
  }
  found->passed_over_until_ns = now_ns_ + kPassOverNs;
  return true;
}

// A checkpoint cannot be read: true when another can. Where none can, it stays listed: starting over is for people to
// decide.
bool WorkerReports::PassOver(const v1::FailureReport& report, const std::string& sentence) {
  const absl::StatusOr<CheckpointIdentity> checkpoint = FromProto(report.unreadable());
  const auto code = static_cast<absl::StatusCode>(report.code());
  const bool is_of_peer = code == absl::StatusCode::kUnavailable;
  const bool may_pass = (report.of_node() || is_of_peer) && Here().HasTrained();
  if (!checkpoint.ok() || (may_pass && !NoteUnread(*checkpoint, code))) {
    return false;
  }
  const std::set<NodeKey> nodes = life_.MemberNodes();
  std::vector<CheckpointIdentity> others = crew_.Readable(now_ns_, life_.Checkpoints());
  std::erase(others, *checkpoint);
  if ((may_pass && !others.empty()) || is_of_peer) {
    return !others.empty();
  }
  life_.checkpoints.NoteUnreadable(*checkpoint, nodes);
  if (others.empty()) {
    const bool is_elsewhere = std::ranges::any_of(life_.checkpoints.listed, [&](const ListedCheckpoint& each) {
      return each.IsUnreadableAt(nodes) && each.IsBeyond(nodes);
    });
    if (is_elsewhere && limits_.restarts_per_hour > 0 && life_.state == v1::JOB_STATE_DEPLOYING) {
      crew_.lacking = sentence;
    }
    return false;
  }
  const int64_t first = life_.checkpoints.FirstIteration();
  life_.checkpoints.Strike(*checkpoint, nodes);
  if (life_.checkpoints.FirstIteration() != first && told_.iterations.next() == first) {
    told_.iterations.BeginAt(life_.plan->plan.grid.size(), life_.checkpoints.FirstIteration(),
                             limits_.max_iterations_kept);
    told_.evaluations = EvaluationLog(life_.job.evaluation, life_.end());  // it begins with an earlier one, too
    told_.evaluations.PassOver(std::max(told_.evaluated_before, life_.checkpoints.FirstIteration() - 1));
  }
  return true;
}

// Workers repeat their findings, so that none has to outlive this coordinator.
void WorkerReports::OnDataCheck(const WorkerKey& key, const v1::DataCheckReport& report) {
  crew_.workers.at(key).data_check = report;
  for (const auto& [other, each] : crew_.workers) {
    const std::optional<DataDifference> difference =
        other == key || !life_.Has(other) ? std::nullopt : FirstDifference(each.data_check, report);
    if (difference.has_value()) {
      crew_.fault = DifferenceSentence(DisplayName(std::min(key, other)), DisplayName(std::max(key, other)),
                                       life_.job.data, *difference);
      return;
    }
  }
}

// --- Checkpoints --------------------------------------------------------------------------------------------------

Reaction WorkerReports::OnCheckpoint(const WorkerKey& key, const v1::WorkerReport& report) {
  CheckpointList& list = life_.checkpoints;
  RunCheckpoints::Outcome outcome;
  if (report.has_checkpoint()) {
    const int64_t iteration = report.checkpoint().iteration();
    if (!crew_.checkpoints.Pending(iteration) && list.Reaches(iteration)) {
      return {};  // repeated to a restarted coordinator: nodes may have removed the checkpoint since
    }
    outcome = crew_.checkpoints.OnFiles(now_ns_, key, report.epoch(), report.checkpoint());
  } else if (report.has_manifest()) {
    outcome = crew_.checkpoints.OnManifest(now_ns_, key, report.epoch(), report.manifest());
  } else {
    outcome = crew_.checkpoints.OnCopied(key, report.epoch(), report.replica());
  }
  Reaction reaction{.checkpoint = outcome.complete, .copied = outcome.copied, .checkpoint_trouble = outcome.trouble};
  if (!outcome.orders.empty()) {  // nodes make room for it: what they may remove is listed no more
    reaction.unlisted = list.Trim(std::max<int64_t>(1, life_.job.checkpoint.keep - 1), life_.job.checkpoint);
  }
  for (RunCheckpoints::ManifestOrder& order : outcome.orders) {
    for (const CheckpointIdentity& kept : list.Kept()) {
      order.command.add_kept_iterations(kept.iteration);
    }
    v1::WorkerCommand command;
    command.set_epoch(life_.epoch->number);
    *command.mutable_write_manifest() = std::move(order.command);
    reaction.sends.push_back(CommandTo(life_, order.worker, std::move(command)));
  }
  for (const RunCheckpoints::CopyOrder& order : outcome.copies) {
    reaction.sends.push_back(CopyMessage(life_, order));
  }
  if (outcome.complete.has_value()) {
    list.List(*outcome.complete, life_.job.checkpoint);
    list.marked.merge(life_.MemberNodes());  // who could not mark its folder before has done so to write there
    if (outcome.complete->identity.iteration >= crew_.troubled_iteration) {
      crew_.checkpoint_trouble.clear();
    }
  }
  if (outcome.copied.has_value()) {
    const auto copied = std::ranges::find(list.listed, outcome.copied->identity, &ListedCheckpoint::identity);
    if (copied != list.listed.end()) {
      copied->parts = outcome.copied->parts;
    }
  }
  if (outcome.trouble.has_value()) {
    crew_.checkpoint_trouble = *outcome.trouble;
    crew_.troubled_iteration = report.has_checkpoint() ? report.checkpoint().iteration()
                               : report.has_manifest() ? report.manifest().iteration()
                                                       : report.replica().iteration();
    crew_.saving.not_before_ns = now_ns_ + SaveAgainAfterNs();
  }
  return reaction;
}

int64_t WorkerReports::SaveAgainAfterNs() const {
  constexpr int64_t kFirstDelayNs = 500'000'000;  // doubled from try to try: a rank may still write the one before
  return life_.state == v1::JOB_STATE_RUNNING ? kSaveLastAgainNs : kFirstDelayNs << std::max(0, crew_.saving.tries - 1);
}

}  // namespace geopipe
