#include "coordinator/core/run/epoch.h"

#include <fmt/format.h>

#include <algorithm>
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
    return worker != nullptr && HasLeft(*worker, old->number);
  });
  if (!fenced) {
    if (std::optional<std::string> loss = LossOf(facts, old->members); loss.has_value()) {
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
  const std::optional<CheckpointIdentity> from = old.has_value() ? std::nullopt : facts.resume_from;
  const int64_t held = old.has_value() ? workers.front()->next_iteration : 0;
  const int64_t first = from.has_value() ? from->iteration : held;
  for (const WorkerFacts* worker : workers) {
    if (worker->next_iteration != held) {
      return Fail(fmt::format("worker {} has the state before iteration {} and worker {} that before iteration {}",
                              DisplayName(workers.front()->worker.worker), held, DisplayName(worker->worker.worker),
                              worker->next_iteration));
    }
  }
  if (first >= facts.end_iteration) {
    return Wait("all iterations are done");
  }
  return {.kind = EpochDecision::Kind::kNew,
          .epoch = {.number = old.has_value() ? old->number + 1 : 1,
                    .members = facts.members,
                    .secret = facts.secret,
                    .first_iteration = first,
                    .from_checkpoint = from},
          .reason = {}};
}

}  // namespace geopipe
