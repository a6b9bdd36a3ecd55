#include "coordinator/core/life/hearing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace geopipe {

// Heartbeats and hellos of an agent say the same as reports that are still to come, or that came before a restart. A
// late hello may concern an earlier epoch.
void Hearing::TakeStatus(WorkerFacts& worker, const v1::WorkerStatus& status) {
  if (status.phase() == v1::WORKER_PHASE_UNSPECIFIED || status.epoch() < worker.epoch) {
    return;
  }
  if (status.run_incarnation() == life_.incarnation) {
    NoteEpochOf(status.epoch());
  }
  worker.epoch = status.epoch();
  worker.phase = status.phase();
  worker.next_iteration = status.next_iteration();
  worker.states = StatesOf(status.states());
  life_.posts.at(worker.worker.worker).exchange_address = status.exchange_address();
  if (life_.epoch.has_value() && status.epoch() == life_.epoch->number) {
    NoteReached(status.next_iteration());
  }
}

// A worker may be in a later epoch than the run's record knows of. Only the number and the members of it can be known,
// which is enough to end it.
void Hearing::NoteEpochOf(uint64_t number) {
  if (number <= (life_.epoch.has_value() ? life_.epoch->number : life_.epochs_before)) {
    return;
  }
  crew_.later = fmt::format("up to epoch {}, and its workers are in epoch {}",
                            life_.epoch.has_value() ? life_.epoch->number : 0, number);
  if (!life_.epoch.has_value()) {
    return;
  }
  life_.epoch = {.number = number,
                 .members = life_.Members(),
                 .secret = life_.epoch->secret,
                 .first_iteration = life_.epoch->first_iteration};
  life_.committed = true;
  for (auto& [key, post] : life_.posts) {
    WorkerFacts& worker = crew_.workers.at(key);
    const bool is_gone = worker.stage == WorkerFacts::Stage::kEnded || worker.sight == WorkerFacts::Sight::kUnseen;
    if (post.duty == Post::Duty::kLost && !is_gone) {  // that was before the later epoch
      post.duty = Post::Duty::kServes;
      worker.alone_since_ns.reset();
    }
  }
  crew_.rollout = PlanRollout(number, life_.plan->plan.grid, life_.members, true);
  crew_.checkpoints.BeginEpoch(*life_.epoch, life_.incarnation, life_.plan->plan.sequence_length,
                               life_.job.checkpoint.replicate > 0);
  told_.iterations.BeginEpoch(number, told_.iterations.next());
}

// Keeps the states of this run: memory that outlives a process may hold those of an earlier one.
std::vector<StateIdentity> Hearing::StatesOf(const google::protobuf::RepeatedPtrField<v1::HeldState>& states) const {
  std::vector<StateIdentity> found;
  for (const v1::HeldState& state : states) {
    if (state.run_incarnation() == life_.incarnation) {
      found.push_back({.iteration = state.iteration(), .epoch = state.epoch()});
    }
  }
  return found;
}

// Acts on a status alone, where the report of it may be lost.
void Hearing::Settle(WorkerFacts& worker) {
  if (life_.state == v1::JOB_STATE_RUNNING && worker.epoch == life_.epoch->number &&
      worker.phase == v1::WORKER_PHASE_ENDED && !worker.failed) {
    (void)OnEnded(worker, worker.next_iteration, false);
  }
}

// The first member to end decides where: no other can finish an iteration from there on. `reported`: by the report that
// follows those of its iterations.
Reaction Hearing::OnEnded(WorkerFacts& worker, int64_t next_iteration, bool reported) {
  const WorkerKey& key = worker.worker.worker;
  const int32_t rank = life_.RankOf(key);
  if (rank < 0 || life_.ended_at.has_value()) {
    return {};
  }
  if (!life_.ending) {
    crew_.diagnosis.Add(now_ns_,
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
  if (Here().Finished(worker)) {
    NoteLastReport(worker);
  }
  return {.iterations_finished = told_.iterations.OnRankAt(rank, next_iteration)};
}

void Hearing::NoteLastReport(WorkerFacts& worker) {
  worker.told_all = true;
  if (std::ranges::all_of(life_.members, [&](const WorkerKey& each) { return crew_.workers.at(each).told_all; })) {
    told_.evaluations.GiveUpBefore(life_.end() + 1);
  }
}

// Some rank has finished all iterations below `next`, so every rank has taken part in them.
void Hearing::NoteReached(int64_t next) {
  if (next <= crew_.reached) {
    return;
  }
  crew_.reached = next;
  crew_.times.progressed = life_.progressed = true;
  crew_.restarts.OnProgress();
  if (next >= life_.end()) {
    crew_.saving = {.tries = 0, .not_before_ns = now_ns_ + kSaveLastAgainNs};  // training writes it when it ends
  }
}

void Hearing::NoteProgress() {
  if (std::exchange(crew_.times.progressed, false)) {
    crew_.times.progress_ns = now_ns_;
    crew_.times.since_ns = life_.state == v1::JOB_STATE_RUNNING ? now_ns_ : crew_.times.since_ns;
  }
}

}  // namespace geopipe
