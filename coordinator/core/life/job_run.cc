#include "coordinator/core/life/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/life/worker_reports.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

using Kind = Decision::Kind;
using Stage = WorkerFacts::Stage;

constexpr int64_t kMoveAgainNs = 60'000'000'000;

}  // namespace

JobRun::JobRun(JobLife life, std::string version, const JobRunLimits& limits, int64_t now_ns)
    : version_(std::move(version)), limits_(limits), life_(std::move(life)) {
  crew_.restarts = Restarts(limits.restarts_per_hour, life_.incarnation);
  crew_.times = {.since_ns = now_ns, .progress_ns = now_ns, .told_ns = now_ns, .quiet_ns = now_ns};
  for (const auto& [key, post] : life_.posts) {
    crew_.workers[key] = {.worker = {key, post.incarnation}, .phase = v1::WORKER_PHASE_IDLE};
  }
}

JobRun::JobRun(const JobSpec& job, const RunOptions& run, Allocation allocation, uint64_t incarnation,
               std::string version, const JobRunLimits& limits)
    : JobRun(JobLife(job, run, std::move(allocation), incarnation), std::move(version), limits, 0) {}

// --- What it goes on from -----------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<JobRun>> JobRun::Restore(const JobSpec& job, const RunOptions& run, StoredJob stored,
                                                        std::string version, const JobRunLimits& limits, Now now) {
  GP_ASSIGN_OR_RETURN(JobLife life,
                      JobLife::Restore(job, run, stored.detail, stored.record, stored.next_iteration > 0));
  std::unique_ptr<JobRun> self(new JobRun(std::move(life), std::move(version), limits, now.ns));
  const JobLife& restored = self->life_;
  CrewFacts& crew = self->crew_;
  // Hellos of workers that were started again are not stored, so it is not known who has said hello.
  const bool begun = restored.state != v1::JOB_STATE_PROFILING && restored.state != v1::JOB_STATE_RECOVERING;
  for (auto& [key, worker] : crew.workers) {
    worker.stage = begun ? Stage::kAttached : Stage::kStarting;
    worker.phase = v1::WORKER_PHASE_UNSPECIFIED;  // until it is heard of
    if (restored.posts.at(key).duty == Post::Duty::kLost) {
      worker.alone_since_ns = now.ns;
    }
  }
  crew.undriven = restored.nodes;
  crew.heard_all = false;
  self->RestoreHistory(stored.detail, now);
  if (restored.epoch.has_value()) {
    self->told_.memory = MemoryLog(stored.detail.measured_memory());
    self->NoteEpoch(restored.committed);
  }
  const int64_t first = restored.epoch.has_value() ? restored.checkpoints.FirstIteration() : 0;
  if (stored.next_iteration < first) {
    stored.iterations.clear();  // of a run that did not get as far
  }
  self->told_.iterations =
      IterationLog::Restore(restored.epoch.has_value() ? restored.plan->plan.grid.size() : 0,
                            limits.max_iterations_kept, restored.epoch.has_value() ? restored.epoch->number : 0,
                            std::max(first, stored.next_iteration), std::move(stored.iterations), stored.partial);
  return self;
}

void JobRun::RestoreHistory(const v1::JobDetail& detail, Now now) {
  for (const v1::RecoverySummary& recovery : detail.recoveries()) {
    for (const v1::LostWorker& lost : recovery.workers()) {
      const int64_t age_ns = std::max<int64_t>(0, now.unix_ns - lost.unix_time_ns());
      if (!lost.of_node()) {
        crew_.restarts.OnLost(now.ns - age_ns, {lost.site(), lost.node(), lost.device()}, lost.cause());
      }
    }
    if (recovery.ended_unix_time_ns() == 0) {
      crew_.restarts.CountAttempt();
    } else {
      crew_.restarts.OnProgress();
    }
  }
  told_.evaluations = EvaluationLog(life_.job.evaluation, life_.end());
  if (detail.evaluations_size() > 0) {
    told_.evaluated_before = detail.evaluations().rbegin()->iteration();
    told_.evaluations.PassOver(told_.evaluated_before);
  }
}

void JobRun::GoOnFrom(JobLife::Earlier earlier, IterationLog iterations) {
  life_.GoOnFrom(std::move(earlier));
  told_.iterations = std::move(iterations);
  told_.evaluations.PassOver(life_.checkpoints.FirstIteration() - 1);  // as in the run before
}

// --- Deciding -----------------------------------------------------------------------------------------------------

std::optional<Reaction> JobRun::Step(int64_t now_ns, uint64_t& last_incarnation) {
  last_ns_ = now_ns;
  Decision decision = Next(At(now_ns));
  if (decision.kind == Kind::kWait) {
    return std::nullopt;
  }
  return CarryOut(now_ns, std::move(decision), last_incarnation);
}

Reaction JobRun::CarryOut(int64_t now_ns, Decision decision, uint64_t& last_incarnation) {
  switch (decision.kind) {
    case Kind::kEnter:
      if (decision.to == v1::JOB_STATE_RUNNING) {
        life_.committed = true;
        life_.checkpoints.DropAfter(life_.epoch->first_iteration);  // of a future that is no more
      }
      life_.profile = decision.to == v1::JOB_STATE_PLANNING ? crew_.rounds.profile() : life_.profile;
      if (decision.to == v1::JOB_STATE_PAUSED || decision.to == v1::JOB_STATE_REPLANNING) {
        life_.ended_at = decision.iteration;
        life_.wants.move = decision.to == v1::JOB_STATE_REPLANNING;
      }
      return {.change = Reaction::Change{decision.to, std::move(decision.sentence)}};
    case Kind::kLose:
      return Lose(now_ns, std::move(decision));
    case Kind::kExtend:
      crew_.times.since_ns = now_ns;
      return {};
    case Kind::kStart:
      return StartLost(now_ns, last_incarnation);
    case Kind::kMeasure:
      crew_.measuring = true;
      crew_.rounds = ProfileRounds(
          ProfileCandidates(life_.choices, life_.run, life_.posts.size(), StandForDevices(life_.run, life_.allocation)),
          life_.allocation.workers());
      crew_.BeginPhase(now_ns);
      return {};
    case Kind::kAskPlan:
      crew_.plan_asked = true;
      return {.wants_plan = true};
    case Kind::kAskSecret:
      crew_.secret_asked = true;
      return {.wants_secret = true};
    case Kind::kBegin:
      BeginEpoch(std::move(decision.epoch));
      return {.change = Reaction::Change{v1::JOB_STATE_DEPLOYING, std::move(decision.sentence)}};
    case Kind::kWantPause:
      life_.wants.pause = true;
      return {.changed = true};
    case Kind::kWantMove:
      life_.wants.move = true;
      life_.wants.move_cause = std::move(decision.sentence);
      return {.changed = true, .log = fmt::format("it is to go on elsewhere: {}", life_.wants.move_cause)};
    case Kind::kEnd:
      life_.ending = true;
      return {.changed = true};
    case Kind::kSave:
      crew_.heard_all = true;
      ++crew_.saving.tries;
      return {.sends = OrderCheckpoint(decision.iteration)};
    case Kind::kStay:
      crew_.saving = {};
      if (life_.state == v1::JOB_STATE_PAUSED) {
        return {.stays = true};
      }
      life_.wants.move = life_.ending = false;
      crew_.times.move_not_before_ns = now_ns + kMoveAgainNs;
      return {};
    case Kind::kTellAll:
      return TellAll(now_ns);
    case Kind::kWait:
      break;
  }
  GP_CHECK(false, "job {} carries out that it waits", life_.job.name);
}

Reaction JobRun::Lose(int64_t now_ns, Decision decision) {
  crew_.diagnosis = {};
  Reaction reaction{.loss =
                        Reaction::Loss{.kind = std::string(decision.loss), .cause = decision.sentence, .workers = {}}};
  bool of_node = false;
  for (const LostWorker& lost : decision.workers) {
    life_.posts.at(lost.worker).duty = Post::Duty::kLost;
    of_node = of_node || lost.of_node || lost.of_peer;
    if (!lost.of_node && !lost.of_peer) {
      crew_.restarts.OnLost(now_ns, lost.worker, lost.cause);
    }
  }
  const bool recovers = life_.state == v1::JOB_STATE_RECOVERING;
  reaction.loss->workers = std::move(decision.workers);
  reaction.loss->delay_ns = crew_.restarts.NextDelayNs(of_node);
  reaction.loss->stalled_ns =
      life_.state == v1::JOB_STATE_RUNNING ? std::max<int64_t>(0, now_ns - crew_.times.progress_ns) : 0;
  if (!life_.epoch.has_value()) {
    reaction.change = Reaction::Change{v1::JOB_STATE_PENDING, std::move(decision.sentence)};
    return reaction;
  }
  life_.may_go_back = life_.ending = true;
  life_.wants.move = false;
  if (!crew_.succeeded && !std::exchange(crew_.later, {}).empty()) {
    life_.outrun = life_.wants.pause = true;
  }
  life_.ended_at.reset();
  crew_.ends_at.reset();
  crew_.times.recover_at_ns = now_ns + reaction.loss->delay_ns;
  crew_.times.since_ns = std::max(now_ns, crew_.times.recover_at_ns);
  if (!recovers) {
    reaction.change = Reaction::Change{v1::JOB_STATE_RECOVERING, std::move(decision.sentence)};
  }
  return reaction;
}

void JobRun::BeginEpoch(Epoch epoch) {
  life_.secret.clear();
  crew_.secret_asked = life_.from_store = false;
  life_.epoch = std::move(epoch);
  life_.committed = life_.ending = life_.may_go_back = false;
  life_.ended_at.reset();
  crew_.ends_at.reset();
  const int64_t first = life_.epoch->first_iteration;
  crew_.reached = first;
  crew_.heard_all = crew_.heard_all && first < life_.end();  // else nobody writes the last state
  for (const WorkerKey& member : life_.members) {
    WorkerFacts& worker = crew_.workers.at(member);
    worker.told_all = worker.failed = false;  // the failure that parked it belongs to the previous epoch
    worker.slow_action.clear();
  }
  idle_ = life_.DismissIdle();
  NoteEpoch(false);
  told_.iterations.BeginEpoch(life_.epoch->number, first);
  told_.evaluations.GiveUpBefore(first);
}

// Answers and checkpoints are of this epoch from now on.
void JobRun::NoteEpoch(bool committed) {
  crew_.rollout = PlanRollout(life_.epoch->number, life_.plan->plan.grid, life_.members, committed);
  crew_.checkpoints.BeginEpoch(*life_.epoch, life_.incarnation, life_.plan->plan.sequence_length,
                               life_.job.checkpoint.replicate > 0);
  told_.evaluations.PassOver(life_.checkpoints.FirstIteration() - 1);  // those before the job's first are of another
}

Reaction JobRun::StartLost(int64_t now_ns, uint64_t& last_incarnation) {
  Reaction reaction{.changed = true};
  for (auto& [key, post] : life_.posts) {
    if (At(now_ns).MayStart(key)) {
      if (const Order stop = DueFor(At(now_ns), key); stop != crew_.workers.at(key).sent && stop != Order()) {
        reaction.sends.push_back(MessageOf(At(now_ns), key, stop, LinkTable()));
      }
      post = {.incarnation = ++last_incarnation};
      crew_.workers[key] = {.worker = {key, post.incarnation}, .phase = v1::WORKER_PHASE_IDLE};
    }
  }
  crew_.times.since_ns = now_ns;
  return reaction;
}

// Completes the iterations that were done although reports of them are missing.
Reaction JobRun::TellAll(int64_t now_ns) {
  crew_.times.told_ns = now_ns;
  Reaction reaction;
  for (int32_t rank = 0; rank < std::ssize(life_.members); ++rank) {
    reaction.iterations_finished +=
        told_.iterations.OnRankAt(rank, crew_.workers.at(life_.members[rank]).next_iteration);
  }
  if (At(now_ns).AllFinished()) {
    told_.evaluations.GiveUpBefore(life_.end() + 1);
  }
  return reaction;
}

// --- Entering a state, and its orders -----------------------------------------------------------------------------

std::vector<NodeMessage> JobRun::Enter(JobState state, int64_t now_ns) {
  life_.state = state;
  switch (state) {
    case v1::JOB_STATE_DEPLOYING:
      crew_.times.progress_ns = now_ns;  // nodes that were silent before have time to return
      crew_.BeginPhase(now_ns);
      return StopMessages(life_, std::exchange(idle_, {}), limits_.stop_grace_ns,
                          "the plan has no use for this device");
    case v1::JOB_STATE_RECOVERING:
      crew_.times.quiet_ns = now_ns;
      break;  // since_ns is set by the loss
    case v1::JOB_STATE_RUNNING:
      crew_.times.progress_ns = crew_.times.told_ns = crew_.times.since_ns = now_ns;
      break;
    case v1::JOB_STATE_PAUSED:
    case v1::JOB_STATE_REPLANNING:
      crew_.times.told_ns = now_ns;
      crew_.saving = {};
      break;
    default:
      crew_.times.since_ns = now_ns;
  }
  return {};
}

std::vector<NodeMessage> JobRun::TakeDueOrders(int64_t now_ns, absl::FunctionRef<LinkTable()> links) {
  const Situation s = At(now_ns);
  std::vector<NodeMessage> sends;
  const LinkTable none;
  std::optional<LinkTable> table;
  std::vector<WorkerKey> keys = life_.members;  // in order of rank, and then the others
  for (const auto& [key, post] : life_.posts) {
    if (life_.RankOf(key) < 0) {
      keys.push_back(key);
    }
  }
  for (const WorkerKey& key : keys) {
    WorkerFacts& worker = crew_.workers.at(key);
    const Order due = DueFor(s, key);
    if (due == Order() || due == worker.sent) {
      continue;
    }
    // An agent that has returned is sent again what it may have missed when all are there, but in a recovery at once.
    // One that is not heard may come back with a lost worker that is well.
    const bool is_heard = crew_.heard(key.node_key());
    const bool waits =
        crew_.undriven.contains(key.node_key()) && (life_.state != v1::JOB_STATE_RECOVERING || !is_heard);
    if (waits || (due.kind == Order::Kind::kReplace && !is_heard)) {
      continue;
    }
    if (due.kind == Order::Kind::kPrepare && !table.has_value()) {
      table = links();
    }
    worker.sent = due;
    sends.push_back(MessageOf(s, key, due, table.has_value() ? *table : none));
  }
  return sends;
}

// --- What is wanted -----------------------------------------------------------------------------------------------

void JobRun::Resume(std::string secret, bool from_store) {
  life_.wants.pause = life_.outrun = false;
  life_.from_store = from_store;
  if (life_.ending || life_.state != v1::JOB_STATE_RUNNING) {  // else nobody has heard of the pause
    TakeSecret(std::move(secret));
  }
}

void JobRun::TakeSecret(std::string secret) {
  crew_.secret_asked = false;
  life_.secret = std::move(secret);
}

absl::Status JobRun::SetPlan(PlanResult* plan, std::string secret) {
  GP_RETURN_IF_ERROR(life_.SetPlan(plan));
  const int32_t ranks = plan->plan.grid.size();
  if (life_.epochs_before > 0) {
    told_.iterations.GoOnWith(ranks);
  } else {
    told_.iterations.BeginAt(ranks, life_.checkpoints.FirstIteration(), limits_.max_iterations_kept);
  }
  told_.memory = {};
  TakeSecret(std::move(secret));
  return absl::OkStatus();
}

void JobRun::OnPlanningBegun(int64_t now_ns) {
  if (life_.state == v1::JOB_STATE_PLANNING) {
    crew_.times.planning = true;
    crew_.times.since_ns = now_ns;
  }
}

std::vector<NodeMessage> JobRun::OrderCheckpoint(int64_t iteration) {
  const bool leaves = life_.state == v1::JOB_STATE_REPLANNING && !crew_.around.leaving.empty();
  if (leaves) {
    crew_.checkpoints.Ask(iteration, {.wanted = true, .avoid = crew_.around.leaving});
  } else {
    crew_.checkpoints.Ask(iteration);
  }
  v1::WorkerCommand command;
  command.mutable_checkpoint()->set_iteration(iteration);
  return CommandAll(life_, std::move(command));
}

absl::StatusOr<int64_t> JobRun::Checkpoint(Reaction& reaction) {
  constexpr int64_t kHearNs = 2'000'000'000;  // until every rank has heard of it
  if (life_.job.checkpoint.path.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has no checkpoint.path to write to; give it one and apply it again", life_.job.name));
  }
  const bool is_running = life_.state == v1::JOB_STATE_RUNNING;
  if (life_.state != v1::JOB_STATE_PAUSED && (!is_running || At(last_ns_).Leaves())) {
    return absl::FailedPreconditionError(
        fmt::format("job {} {}; a checkpoint can be asked for while it is RUNNING or PAUSED", life_.job.name,
                    is_running ? "is about to pause" : "is not running yet"));
  }
  const int64_t margin = 2 + kHearNs / std::max<int64_t>(1, life_.plan->prediction.iteration_ns);
  const int64_t iteration =
      is_running ? std::max(crew_.reached, life_.epoch->first_iteration) + margin : *life_.ended_at;
  if (is_running && iteration >= life_.end()) {
    return life_.end();  // that one is written anyway
  }
  if (!crew_.checkpoints.Pending(iteration) && (is_running || !life_.checkpoints.Reaches(iteration))) {
    reaction.sends = OrderCheckpoint(iteration);
  }
  return iteration;
}

// --- Hearing ------------------------------------------------------------------------------------------------------

Reaction JobRun::OnReport(int64_t now_ns, const WorkerKey& worker, const v1::WorkerReport& report) {
  return WorkerReports(life_, crew_, told_, limits_, now_ns).OnReport(worker, report, version_);
}

// --- What is known ------------------------------------------------------------------------------------------------

std::string JobRun::SilenceSentence() const {
  return life_.state != v1::JOB_STATE_RUNNING || crew_.all_hear()
             ? ""
             : fmt::format("{} cannot be heard; workers there go on by themselves meanwhile",
                           At(last_ns_).UnheardNames());
}

// A rank reports an evaluation before the iteration that follows it, so that none is to come of iterations that are
// complete.
std::vector<v1::EvaluationSummary> JobRun::TakeEvaluations() {
  told_.evaluations.GiveUpBefore(std::min(told_.iterations.next(), life_.end()));
  return told_.evaluations.TakeNew();
}

}  // namespace geopipe
