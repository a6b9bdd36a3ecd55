#include "coordinator/core/run/epoch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace geopipe {
namespace {

EpochDecision Wait(std::string reason) {
  return {.kind = EpochDecision::Kind::kWait, .epoch = {}, .reason = std::move(reason)};
}

EpochDecision Fail(std::string reason) {
  return {.kind = EpochDecision::Kind::kFail, .epoch = {}, .reason = std::move(reason)};
}

const WorkerFacts* FactsOf(const EpochFacts& facts, const EpochMember& member) {
  const auto found = std::ranges::find(facts.workers, member, &WorkerFacts::worker);
  return found == facts.workers.end() ? nullptr : &*found;
}

// Has said that it runs this epoch no more.
bool HasLeft(const WorkerFacts& worker, uint64_t epoch) {
  return worker.epoch > epoch || (worker.epoch == epoch && (worker.phase == v1::WORKER_PHASE_ENDED ||
                                                            worker.phase == v1::WORKER_PHASE_FINISHED));
}

// Its state will not change by itself.
bool Rests(const WorkerFacts& worker) {
  return worker.phase == v1::WORKER_PHASE_IDLE || worker.phase == v1::WORKER_PHASE_ENDED ||
         worker.phase == v1::WORKER_PHASE_FINISHED;
}

// A younger worker of its device has said hello.
bool HasSuccessor(const EpochFacts& facts, const EpochMember& member) {
  return std::ranges::any_of(facts.workers, [&](const WorkerFacts& worker) {
    return worker.worker.worker == member.worker && worker.worker.incarnation > member.incarnation && worker.attached;
  });
}

// What an epoch begins with.
struct Beginning {
  StateIdentity state;
  std::optional<CheckpointIdentity> checkpoint;
};

std::optional<StateIdentity> NewestCommon(const std::vector<const WorkerFacts*>& workers, int64_t up_to) {
  std::optional<StateIdentity> newest;
  for (const StateIdentity& state : workers.front()->states) {
    if (state.iteration > up_to) {
      continue;
    }
    const bool common = std::ranges::all_of(workers, [&](const WorkerFacts* worker) {
      return std::ranges::find(worker->states, state) != worker->states.end();
    });
    if (common && (!newest.has_value() || *newest < state)) {
      newest = state;
    }
  }
  return newest;
}

Beginning NewestOf(std::optional<StateIdentity> held, const std::vector<CheckpointIdentity>& checkpoints) {
  const auto newest = std::ranges::max_element(checkpoints, {}, &CheckpointIdentity::iteration);
  if (newest != checkpoints.end() && (!held.has_value() || held->iteration < newest->iteration)) {
    return {.state = {.iteration = newest->iteration}, .checkpoint = *newest};
  }
  return {.state = held.value_or(StateIdentity{}), .checkpoint = std::nullopt};
}

std::string DisplayStates(const WorkerFacts& worker) {
  const auto newest = std::ranges::max_element(worker.states);
  return fmt::format("worker {} has {}", DisplayName(worker.worker.worker),
                     newest == worker.states.end()
                         ? "no state"
                         : fmt::format("the state before iteration {} of epoch {}", newest->iteration, newest->epoch));
}

std::optional<std::string> LossOf(const EpochFacts& facts, const std::vector<EpochMember>& members) {
  for (const EpochMember& member : members) {
    const WorkerFacts* worker = FactsOf(facts, member);
    if (worker == nullptr) {
      return fmt::format("worker {} is no longer one of the job's", DisplayName(member.worker));
    }
    if (worker->lost.has_value()) {
      return worker->lost;
    }
  }
  return std::nullopt;
}

}  // namespace

EpochDecision NextEpoch(const std::optional<Epoch>& old, const EpochFacts& facts) {
  if (std::optional<std::string> loss = LossOf(facts, facts.members); loss.has_value()) {
    return Fail(*std::move(loss));
  }
  for (const WorkerFacts& worker : facts.workers) {
    if (!old.has_value() && facts.members.empty() && worker.lost.has_value()) {
      return Fail(*worker.lost);
    }
  }
  const bool fenced = !old.has_value() || std::ranges::any_of(old->members, [&](const EpochMember& member) {
    const WorkerFacts* worker = FactsOf(facts, member);
    return (worker != nullptr && HasLeft(*worker, old->number)) || HasSuccessor(facts, member);
  });
  if (!fenced) {
    // After a loss its place may be taken by another already, which is about to say hello.
    if (std::optional<std::string> loss = LossOf(facts, old->members); loss.has_value() && !facts.may_go_back) {
      return Fail(*std::move(loss));
    }
    return Wait(fmt::format("epoch {} runs", old->number));
  }
  if (!facts.wanted) {
    return Wait("the job is paused");
  }
  if (facts.members.empty()) {
    return Wait("there is no plan");
  }
  std::vector<const WorkerFacts*> workers;
  for (const EpochMember& member : facts.members) {
    workers.push_back(FactsOf(facts, member));
    const WorkerFacts& worker = *workers.back();
    if (!worker.attached || !Rests(worker)) {
      return Wait(fmt::format("worker {} {}", DisplayName(member.worker),
                              worker.attached ? "is about to end its epoch" : "has not said hello"));
    }
  }
  std::optional<StateIdentity> held = NewestCommon(workers, std::numeric_limits<int64_t>::max());
  if (facts.may_go_back && held.has_value()) {
    held = NewestCommon(workers, facts.told_iterations).value_or(*held);
  }
  if (old.has_value() && !held.has_value() && !facts.may_go_back) {
    const auto other = std::ranges::find_if(
        workers, [&](const WorkerFacts* worker) { return worker->states != workers.front()->states; });
    return Fail(fmt::format("{} and {}", DisplayStates(*workers.front()),
                            DisplayStates(other == workers.end() ? *workers.back() : **other)));
  }
  const bool goes_back = !old.has_value() || facts.may_go_back;
  const Beginning from = NewestOf(held, goes_back ? facts.checkpoints : std::vector<CheckpointIdentity>{});
  if (from.state.iteration >= facts.end_iteration && !facts.may_go_back) {
    return Wait("all iterations are done");
  }
  return {.kind = EpochDecision::Kind::kNew,
          .epoch = {.number = 1 + (old.has_value() ? old->number : facts.epochs_before),
                    .members = facts.members,
                    .secret = facts.secret,
                    .first_iteration = from.state.iteration,
                    .state_epoch = from.state.epoch,
                    .from_checkpoint = from.checkpoint},
          .reason = {}};
}

}  // namespace geopipe
