// What a run makes of reports of its workers and their agents: facts, and nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "coordinator/core/cluster/link_traffic.h"
#include "coordinator/core/life/job_run.h"
#include "coordinator/core/telemetry/data_agreement.h"
#include "optimizer/base/quantities.h"
#include "optimizer/model/patience.h"
#include "optimizer/schedule/action.h"
#include "proto/wire/checkpoint_wire.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

using Stage = WorkerFacts::Stage;
using Sight = WorkerFacts::Sight;

// The longest that the compute action should take.
int64_t StuckAfterNs(const JobLife& life, const JobRunLimits& limits, std::string_view text) {
  const absl::StatusOr<Action> action = ParseAction(text);
  int64_t planned_ns = 0;
  if (life.plan != nullptr && action.ok() && action->stage >= 0 && action->stage < life.plan->costs.shape.stages) {
    planned_ns = std::max(life.plan->costs.forward_ns[action->stage], life.plan->costs.BackwardNs(action->stage));
  }
  return std::max(limits.stuck_after_ns, PatienceNs(static_cast<double>(planned_ns)));
}

}  // namespace

Reaction JobRun::OnReport(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report) {
  if (!life_.Has(key)) {
    return {};
  }
  WorkerFacts& worker = crew_.workers.at(key);
  const bool of_epoch = life_.epoch.has_value() && report.epoch() == life_.epoch->number;
  switch (report.report_case()) {
    case v1::WorkerReport::kHello:
      OnHello(now_ns, worker, report.hello());
      return {};
    case v1::WorkerReport::kProfile:
      OnProfile(now_ns, key, report.profile());
      return {};
    case v1::WorkerReport::kPrepared:
    case v1::WorkerReport::kCommitted:
      if (of_epoch) {
        OnAnswer(now_ns, worker, report);
      }
      return {};
    case v1::WorkerReport::kFailure:
      // A failure in an older epoch is no news, except from a worker that cannot go on at all, which reports it with
      // whichever epoch it knows.
      return of_epoch || !report.failure().parked() ? OnFailure(now_ns, worker, report.failure()) : Reaction{};
    case v1::WorkerReport::kIteration:
      return of_epoch ? OnIteration(now_ns, worker, report.iteration()) : Reaction{};
    case v1::WorkerReport::kEvaluation:
      if (of_epoch) {
        OnEvaluation(now_ns, key, report.evaluation());
      }
      return {};
    case v1::WorkerReport::kFinished:
      return of_epoch ? OnFinished(now_ns, worker, report.finished()) : Reaction{};
    case v1::WorkerReport::kEnded:
      worker.states = of_epoch ? StatesOf(report.ended().states()) : worker.states;
      return of_epoch ? OnEnded(now_ns, worker, report.ended().next_iteration(), true) : Reaction{};
    case v1::WorkerReport::kCheckpoint:
    case v1::WorkerReport::kManifest:
    case v1::WorkerReport::kReplica:
      return OnCheckpoint(now_ns, key, report);
    case v1::WorkerReport::kDataCheck:  // of whichever epoch: the data is that of the run
      OnDataCheck(key, report.data_check());
      return {};
    case v1::WorkerReport::kHeartbeat:
      TakeStatus(now_ns, worker, report.heartbeat().status());
      NoteProgress(now_ns);
      Settle(now_ns, worker);
      CheckStuck(now_ns, worker, report.heartbeat().status());
      return {};
    case v1::WorkerReport::REPORT_NOT_SET:
      break;
  }
  return {};
}

// --- Up to the first iteration ------------------------------------------------------------------------------------

// A worker that says hello again (to another process of its agent) counts as no younger.
void JobRun::OnHello(int64_t now_ns, WorkerFacts& worker, const v1::WorkerHello& hello) {
  const bool first = worker.stage == Stage::kStarting;
  worker.stage = Stage::kAttached;
  if (first && hello.version() != version_) {
    crew_.fault = fmt::format("worker {} is version {} and the coordinator is version {}; install the same on both",
                              DisplayName(worker.worker.worker), hello.version(), version_);
    return;
  }
  life_.posts.at(worker.worker.worker).exchange_address = hello.status().exchange_address();
  if (life_.state == v1::JOB_STATE_RECOVERING) {
    TakeStatus(now_ns, worker, hello.status());
  }
}

void JobRun::OnProfile(int64_t now_ns, const WorkerKey& key, const v1::ProfileReport& report) {
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
    BeginPhase(now_ns);
  }
}

void JobRun::TakeFoundCheckpoints() {
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
  if (life_.must_find_state) {
    life_.checkpoints.DropLostParts(crew_.found_checkpoints);
  }
}

void JobRun::OnAnswer(int64_t now_ns, WorkerFacts& worker, const v1::WorkerReport& report) {
  const bool is_prepared = report.has_prepared();
  const bool is_deploying = life_.state == v1::JOB_STATE_DEPLOYING;
  if (is_prepared || is_deploying) {
    worker.Advance(life_.epoch->number, is_prepared ? v1::WORKER_PHASE_PREPARED : v1::WORKER_PHASE_TRAINING);
  }
  if (!is_deploying) {
    return;
  }
  const WorkerKey& key = worker.worker.worker;
  const absl::StatusOr<bool> all = is_prepared ? crew_.rollout.OnPrepared(key, report.epoch(), report.prepared())
                                               : crew_.rollout.OnCommitted(key, report.epoch(), report.committed());
  if (!all.ok()) {
    crew_.fault = std::string(all.status().message());
  } else if (*all && is_prepared) {
    BeginPhase(now_ns);
  }
}

// --- Iterations ---------------------------------------------------------------------------------------------------

// A rank that has committed begins at once, so its first reports may overtake the last CommittedReport.
Reaction JobRun::OnIteration(int64_t now_ns, WorkerFacts& worker, const v1::IterationReport& report) {
  if (life_.RankOf(worker.worker.worker) != report.rank() || report.iteration() >= life_.end() ||
      report.iteration() < life_.epoch->first_iteration) {
    return {};
  }
  worker.next_iteration = std::max(worker.next_iteration, report.iteration() + 1);
  NoteReached(now_ns, report.iteration() + 1);
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
  crew_.times.told_ns = now_ns;
  NoteProgress(now_ns);
  return reaction;
}

// A rank that reports it has had all others with it.
void JobRun::OnEvaluation(int64_t now_ns, const WorkerKey& key, const v1::EvaluationReport& report) {
  if (life_.RankOf(key) != report.rank() || report.iteration() < life_.epoch->first_iteration) {
    return;
  }
  told_.evaluations.OnReport(report, life_.epoch->number);
  crew_.times.told_ns = now_ns;
  crew_.times.progressed = true;
  NoteProgress(now_ns);
}

Reaction JobRun::OnFinished(int64_t now_ns, WorkerFacts& worker, const v1::FinishedReport& report) {
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
  NoteReached(now_ns, end);
  NoteLastReport(worker);
  return {.iterations_finished = told_.iterations.OnRankAt(report.rank(), end)};
}

// The first member to end decides where: no other can finish an iteration from there on. `reported`: by the report that
// follows those of its iterations.
Reaction JobRun::OnEnded(int64_t now_ns, WorkerFacts& worker, int64_t next_iteration, bool reported) {
  const WorkerKey& key = worker.worker.worker;
  const int32_t rank = life_.RankOf(key);
  if (rank < 0 || life_.ended_at.has_value()) {
    return {};
  }
  if (!life_.ending) {
    crew_.diagnosis.Add(now_ns,
                        {.worth = FailureEvidence::Worth::kUnexplained,
                         .sentence = fmt::format("worker {} (site {}) has ended epoch {} before iteration {}; "
                                                 "the reason was lost when the coordinator restarted",
                                                 DisplayName(key), key.site, life_.epoch->number, next_iteration)});
    return {};
  }
  worker.Advance(life_.epoch->number, v1::WORKER_PHASE_ENDED);
  worker.next_iteration = next_iteration;
  if (life_.state == v1::JOB_STATE_RECOVERING) {
    return {};
  }
  if (!crew_.ends_at.has_value()) {
    crew_.ends_at = next_iteration;
  }
  if (!reported) {
    return {};
  }
  if (At(now_ns).Finished(worker)) {
    NoteLastReport(worker);
  }
  return {.iterations_finished = told_.iterations.OnRankAt(rank, next_iteration)};
}

void JobRun::NoteLastReport(WorkerFacts& worker) {
  worker.told_all = true;
  if (std::ranges::all_of(life_.members, [&](const WorkerKey& each) { return crew_.workers.at(each).told_all; })) {
    told_.evaluations.GiveUpBefore(life_.end() + 1);
  }
}

// Some rank has finished all iterations below `next`, so every rank has taken part in them.
void JobRun::NoteReached(int64_t now_ns, int64_t next) {
  if (next <= crew_.reached) {
    return;
  }
  crew_.reached = next;
  crew_.times.progressed = life_.progressed = true;
  crew_.restarts.OnProgress();
  if (next >= life_.end()) {
    crew_.saving = {.tries = 0, .not_before_ns = now_ns + kSaveLastAgainNs};  // training writes it when it ends
  }
}

void JobRun::NoteProgress(int64_t now_ns) {
  if (std::exchange(crew_.times.progressed, false)) {
    crew_.times.progress_ns = now_ns;
    crew_.times.since_ns = life_.state == v1::JOB_STATE_RUNNING ? now_ns : crew_.times.since_ns;
  }
}

// --- Statuses -----------------------------------------------------------------------------------------------------

// Heartbeats and hellos of an agent say the same as reports that are still to come, or that came before a restart. A
// late hello may concern an earlier epoch.
void JobRun::TakeStatus(int64_t now_ns, WorkerFacts& worker, const v1::WorkerStatus& status) {
  if (status.phase() == v1::WORKER_PHASE_UNSPECIFIED || status.epoch() < worker.epoch) {
    return;
  }
  worker.epoch = status.epoch();
  worker.phase = status.phase();
  worker.next_iteration = status.next_iteration();
  worker.states = StatesOf(status.states());
  life_.posts.at(worker.worker.worker).exchange_address = status.exchange_address();
  if (life_.epoch.has_value() && status.epoch() == life_.epoch->number) {
    NoteReached(now_ns, status.next_iteration());
  }
}

// Keeps the states of this run: memory that outlives a process may hold those of an earlier one.
std::vector<StateIdentity> JobRun::StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const {
  std::vector<StateIdentity> found;
  for (const v1::HeldState& state : states) {
    if (state.run_incarnation() == life_.incarnation) {
      found.push_back({.iteration = state.iteration(), .epoch = state.epoch()});
    }
  }
  return found;
}

// Acts on a status alone, where the report of it may be lost.
void JobRun::Settle(int64_t now_ns, WorkerFacts& worker) {
  if (life_.state == v1::JOB_STATE_RUNNING && worker.epoch == life_.epoch->number &&
      worker.phase == v1::WORKER_PHASE_ENDED && !worker.failed) {
    (void)OnEnded(now_ns, worker, worker.next_iteration, false);
  }
}

// A compute action should take as long as planned, not many times that; one that only waits for messages is not under
// way. It counts when two heartbeats in a row report it: after a pause of the whole host the first one means nothing.
void JobRun::CheckStuck(int64_t now_ns, WorkerFacts& worker, const v1::WorkerStatus& status) {
  const int64_t limit_ns = StuckAfterNs(life_, limits_, status.action());
  const bool stuck = life_.state == v1::JOB_STATE_RUNNING && status.action_ns() >= limit_ns;
  const std::string action = stuck ? fmt::format("{} of iteration {}", status.action(), status.next_iteration()) : "";
  if (!stuck || std::exchange(worker.slow_action, action) != action) {
    worker.slow_action = action;
    return;
  }
  const WorkerKey& key = worker.worker.worker;
  worker.trouble =
      fmt::format("worker {} (site {}) is stuck: {} has taken {} so far and should take {} at most", DisplayName(key),
                  key.site, ToUtf8(action), FormatSeconds(status.action_ns()), FormatSeconds(limit_ns));
  crew_.diagnosis.Add(now_ns, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "stuck"});
}

// --- Failures -----------------------------------------------------------------------------------------------------

Reaction JobRun::OnFailure(int64_t now_ns, WorkerFacts& worker, const v1::FailureReport& report) {
  if (report.parked()) {
    worker.states = StatesOf(report.states());
  }
  if (report.parked() && life_.ending) {  // the others have left as they were told to, before it heard of that
    return OnEnded(now_ns, worker, report.next_iteration(), true);
  }
  worker.failed = true;
  FailureEvidence evidence = EvidenceOf(worker.worker.worker, report);
  if (report.has_unreadable()) {
    const bool goes_on = PassOver(report.unreadable(), evidence.sentence);
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
  }
  crew_.diagnosis.Add(now_ns, std::move(evidence));
  return {};
}

// A checkpoint cannot be read: true when another can. Where none can, it stays listed: starting over is for people to
// decide.
bool JobRun::PassOver(const v1::CheckpointIdentity& identity, const std::string& sentence) {
  const absl::StatusOr<CheckpointIdentity> checkpoint = FromProto(identity);
  if (!checkpoint.ok()) {
    return false;
  }
  const std::set<NodeKey> nodes = life_.MemberNodes();
  life_.checkpoints.NoteUnreadable(*checkpoint, nodes);
  std::vector<CheckpointIdentity> others = life_.Checkpoints();
  std::erase(others, *checkpoint);
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
  }
  return true;
}

void JobRun::OnExit(int64_t now_ns, const WorkerKey& key, const v1::WorkerExit& exit) {
  if (!life_.Has(key)) {
    return;
  }
  WorkerFacts& worker = crew_.workers.at(key);
  worker.stage = Stage::kEnded;
  worker.alone_since_ns.reset();
  const bool orderly = At(now_ns).Finished(worker) && exit.signal() == 0 && exit.exit_code() == 0;
  // A worker that has reported a failure stops by itself afterwards: its exit is no news, nor is the exit of one that
  // is to be started again.
  if (orderly || life_.posts.at(key).duty == Post::Duty::kLost) {
    return;
  }
  FailureEvidence evidence = EvidenceOf(key, exit);
  if (worker.trouble.empty()) {
    worker.trouble = evidence.sentence;
  }
  if (exit.signal() != 0 || !worker.failed) {
    crew_.diagnosis.Add(now_ns, std::move(evidence));
  }
}

void JobRun::OnSilent(int64_t now_ns, const WorkerKey& key, const v1::WorkerSilent& silent) {
  WorkerFacts& worker = crew_.workers.at(key);
  if (life_.posts.at(key).duty == Post::Duty::kLost) {
    return;
  }
  worker.trouble =
      fmt::format("worker {} (site {}, pid {}) is alive but has been silent for {}: it is stopped or stuck",
                  DisplayName(key), key.site, silent.pid(), FormatSeconds(silent.silent_ns()));
  crew_.diagnosis.Add(now_ns, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "silent"});
}

// Workers repeat their findings, so that none has to outlive this coordinator.
void JobRun::OnDataCheck(const WorkerKey& key, const v1::DataCheckReport& report) {
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

Reaction JobRun::OnCheckpoint(int64_t now_ns, const WorkerKey& key, const v1::WorkerReport& report) {
  CheckpointList& list = life_.checkpoints;
  RunCheckpoints::Outcome outcome;
  if (report.has_checkpoint()) {
    const int64_t iteration = report.checkpoint().iteration();
    if (!crew_.checkpoints.Pending(iteration) && list.Reaches(iteration)) {
      return {};  // repeated to a restarted coordinator: nodes may have removed the checkpoint since
    }
    outcome = crew_.checkpoints.OnFiles(now_ns, key, report.epoch(), report.checkpoint());
  } else if (report.has_manifest()) {
    outcome = crew_.checkpoints.OnManifest(now_ns, key, report.epoch(), report.manifest());
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
    crew_.checkpoint_trouble.clear();
  }
  if (outcome.copied.has_value()) {
    const auto copied = std::ranges::find(list.listed, outcome.copied->identity, &ListedCheckpoint::identity);
    if (copied != list.listed.end()) {
      copied->parts = outcome.copied->parts;
    }
  }
  if (outcome.trouble.has_value()) {
    crew_.checkpoint_trouble = *outcome.trouble;
    crew_.saving.not_before_ns = now_ns + SaveAgainAfterNs();
  }
  return reaction;
}

int64_t JobRun::SaveAgainAfterNs() const {
  constexpr int64_t kFirstDelayNs = 500'000'000;  // doubled from try to try: a rank may still write the one before
  return life_.state == v1::JOB_STATE_RUNNING ? kSaveLastAgainNs : kFirstDelayNs << std::max(0, crew_.saving.tries - 1);
}

// --- Agents -------------------------------------------------------------------------------------------------------

void JobRun::OnNodeReturned(int64_t now_ns, const NodeKey& node, const std::map<WorkerKey, Living>& alive, bool fresh) {
  if (fresh) {
    crew_.undriven.insert(node);
  }
  for (auto& [key, worker] : crew_.workers) {
    const auto living = alive.find(key);
    if (key.node_key() != node || !life_.Has(key) || (!fresh && living == alive.end())) {
      continue;
    }
    worker.sent = fresh ? Order() : worker.sent;
    const Sight before = std::exchange(worker.sight, living == alive.end() ? Sight::kUnseen : Sight::kSeen);
    const bool is_lost = life_.posts.at(key).duty == Post::Duty::kLost;
    if (living != alive.end()) {
      worker.stage =
          living->second.attached && worker.stage == Stage::kStarting && fresh ? Stage::kAttached : worker.stage;
      TakeStatus(now_ns, worker, living->second.status);
      if (before == Sight::kOutOfReach) {  // the worker was only out of reach
        life_.posts.at(key).duty = Post::Duty::kServes;
        worker.trouble.clear();
      }
    } else if (before == Sight::kOutOfReach) {
      worker.alone_since_ns = now_ns;  // the worker may have lost its agent a moment ago
    } else if (const Situation s = At(now_ns);
               worker.attached() && !is_lost && (!s.Finished(worker) || s.MayRecover() || !s.LastSaved())) {
      worker.trouble =
          fmt::format("worker {} (site {}) is gone: its agent came back without it", DisplayName(key), key.site);
      worker.alone_since_ns = now_ns;
      crew_.diagnosis.Add(now_ns,
                          {.worth = FailureEvidence::Worth::kUnexplained, .sentence = worker.trouble, .kind = "gone"});
    }
  }
  NoteProgress(now_ns);
  for (const auto& [key, living] : alive) {
    if (key.node_key() == node) {
      Settle(now_ns, crew_.workers.at(key));
    }
  }
}

// Orders and answers on a last state may have been lost with an agent, and nothing else would reveal it, so it is asked
// for again.
void JobRun::OnAllConnected(int64_t now_ns) {
  if (!crew_.undriven.empty() && (life_.state == v1::JOB_STATE_REPLANNING || At(now_ns).AllDone())) {
    crew_.checkpoints.Abandon();
    crew_.heard_all = false;
    crew_.saving.not_before_ns = now_ns + (life_.state == v1::JOB_STATE_REPLANNING ? 0 : kSaveLastAgainNs);
  }
  crew_.undriven.clear();
}

void JobRun::OnTick(int64_t now_ns) {
  const int64_t last_ns = std::exchange(crew_.times.last_tick_ns, now_ns);
  const int64_t passed_ns = last_ns == 0 ? 0 : now_ns - last_ns;
  const Situation s = At(now_ns);
  if (s.AllSilent()) {
    crew_.Forgive(passed_ns);
    return;
  }
  // The silence of a node matters in states in which the job cannot go on without it and no other report shows that it
  // goes on.
  if (life_.state == v1::JOB_STATE_PLANNING || life_.state == v1::JOB_STATE_PAUSED) {
    return;
  }
  if (s.SomeSilent()) {
    crew_.times.since_ns += passed_ns;  // silent nodes cannot answer, and have a grace of their own
  }
  if (life_.state != v1::JOB_STATE_RECOVERING) {
    NoteSilence(now_ns);
    return;
  }
  const bool is_quiet = std::ranges::all_of(crew_.workers, [&](const auto& entry) {
    return life_.posts.at(entry.first).duty != Post::Duty::kServes || entry.second.Rests();
  });
  crew_.times.quiet_ns = is_quiet ? crew_.times.quiet_ns : now_ns;
}

// Notes the loss of nodes that have been silent for so long that their workers, if they are cut off, have ended.
void JobRun::NoteSilence(int64_t now_ns) {
  const Situation s = At(now_ns);
  // A member that has left the epoch ends it for all, so the job may go on elsewhere without waiting for cut-off
  // workers to end by themselves.
  const bool may_leave = life_.job.on_site_loss == OnSiteLoss::kReplan && !s.AllDone() && s.SomeLeft();
  for (const NodeSilence& silence : crew_.around.silences) {
    const int64_t quiet_ns = std::min(silence.silent_ns, now_ns - crew_.times.progress_ns);
    const int64_t grace_ns =
        may_leave ? std::min(life_.job.grace_ns, s.GraceNs(silence, false)) : s.GraceNs(silence, s.AllDone());
    if (!silence.is_silent || quiet_ns < grace_ns) {
      continue;
    }
    std::vector<WorkerKey> workers;
    for (const auto& [key, post] : life_.posts) {
      if (key.node_key() == silence.node && post.duty != Post::Duty::kStopped) {
        workers.push_back(key);
      }
    }
    std::string sentence = fmt::format(
        "agent {} (site {}) has not been heard from for {}, and the job makes no progress; its workers: {}",
        DisplayName(silence.node), silence.node.site, FormatSeconds(silence.silent_ns), DisplayNames(workers));
    for (const WorkerKey& key : workers) {
      crew_.workers.at(key).trouble = sentence;
      crew_.workers.at(key).sight = Sight::kOutOfReach;
    }
    crew_.diagnosis.Add(
        now_ns, {.worth = FailureEvidence::Worth::kRoot, .sentence = std::move(sentence), .kind = "unreachable"});
  }
}

}  // namespace geopipe
