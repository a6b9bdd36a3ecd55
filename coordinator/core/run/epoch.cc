#include "coordinator/core/run/epoch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
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

// True when the worker has said that it no longer runs this epoch.
bool HasLeft(const WorkerFacts& worker, uint64_t epoch) { return worker.epoch > epoch || worker.HasLeft(epoch); }

// True when a younger worker of its device has said hello.
bool HasSuccessor(const EpochFacts& facts, const EpochMember& member) {
  return std::ranges::any_of(facts.workers, [&](const WorkerFacts& worker) {
    return worker.worker.worker == member.worker && worker.worker.incarnation > member.incarnation && worker.attached();
  });
}

// The state that an epoch begins with.
struct Beginning {
  StateIdentity state;
  std::optional<CheckpointIdentity> checkpoint;
};

// The members of an epoch, by rank, with the states that each can have.
class MemberStates {
 public:
  MemberStates(const EpochFacts& facts, std::vector<const WorkerFacts*> workers) : workers_(std::move(workers)) {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      groups_.push_back(facts.replica_groups.empty() ? static_cast<int32_t>(rank) : facts.replica_groups[rank]);
      group_count_ = std::max(group_count_, static_cast<size_t>(groups_.back()) + 1);
    }
  }

  // The newest state that all members, or a replica of each, hold or have kept.
  std::optional<StateIdentity> NewestCommon(int64_t up_to) const {
    std::set<StateIdentity> states;
    for (const WorkerFacts* worker : workers_) {
      states.insert(worker->states.begin(), worker->states.end());
    }
    for (auto state = states.rbegin(); state != states.rend(); ++state) {
      const std::vector<int32_t> givers = FirstOfGroups(*state);
      const bool common = std::ranges::all_of(groups_, [&](int32_t group) { return givers[group] != Epoch::kNobody; });
      if (state->iteration <= up_to && common) {
        return *state;
      }
    }
    return std::nullopt;
  }

  // Epoch::state_ranks. REQUIRES: all can have the state.
  std::vector<int32_t> Givers(const StateIdentity& state) const {
    const std::vector<int32_t> first = FirstOfGroups(state);
    std::vector<int32_t> of_group(group_count_, Epoch::kNobody);
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!Has(rank, state)) {
        of_group[groups_[rank]] = first[groups_[rank]];
      }
    }
    std::vector<int32_t> givers;
    for (const int32_t group : groups_) {
      givers.push_back(of_group[group]);
    }
    const bool none = std::ranges::all_of(givers, [](int32_t giver) { return giver == Epoch::kNobody; });
    return none ? std::vector<int32_t>{} : givers;
  }

 private:
  bool Has(size_t rank, const StateIdentity& state) const {
    return std::ranges::find(workers_[rank]->states, state) != workers_[rank]->states.end();
  }

  // First rank of each group that has the state.
  std::vector<int32_t> FirstOfGroups(const StateIdentity& state) const {
    std::vector<int32_t> first(group_count_, Epoch::kNobody);
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (int32_t& found = first[groups_[rank]]; found == Epoch::kNobody && Has(rank, state)) {
        found = static_cast<int32_t>(rank);
      }
    }
    return first;
  }

  std::vector<const WorkerFacts*> workers_;
  std::vector<int32_t> groups_;  // by rank
  size_t group_count_ = 0;
};

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

}  // namespace

EpochDecision NextEpoch(const std::optional<Epoch>& old, const EpochFacts& facts) {
  const bool fenced = !old.has_value() || std::ranges::any_of(old->members, [&](const EpochMember& member) {
    const WorkerFacts* worker = FactsOf(facts, member);
    return (worker != nullptr && HasLeft(*worker, old->number)) || HasSuccessor(facts, member);
  });
  if (!fenced) {
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
    if (workers.back() == nullptr || !workers.back()->attached()) {
      return Wait(fmt::format("worker {} has not said hello", DisplayName(member.worker)));
    }
    if (!workers.back()->Rests()) {
      return Wait(fmt::format("worker {} is about to end its epoch", DisplayName(member.worker)));
    }
  }
  const MemberStates states(facts, workers);
  std::optional<StateIdentity> held = states.NewestCommon(std::numeric_limits<int64_t>::max());
  if (facts.may_go_back && held.has_value()) {
    held = states.NewestCommon(facts.told_iterations).value_or(*held);
  }
  if (old.has_value() && !held.has_value() && !facts.may_go_back) {
    const auto other = std::ranges::find_if(
        workers, [&](const WorkerFacts* worker) { return worker->states != workers.front()->states; });
    return Fail(fmt::format("{} and {}", DisplayStates(*workers.front()),
                            DisplayStates(other == workers.end() ? *workers.back() : **other)));
  }
  const bool goes_back = !old.has_value() || facts.may_go_back;
  const Beginning from = NewestOf(held, goes_back ? facts.checkpoints : std::vector<CheckpointIdentity>{});
  if (from.state.iteration >= facts.end_iteration && !facts.may_go_back && !facts.may_begin_at_end) {
    return Wait("all iterations are done");
  }
  // All members have the initial state.
  const bool are_given = !from.checkpoint.has_value() && from.state != StateIdentity{};
  return {.kind = EpochDecision::Kind::kNew,
          .epoch = {.number = 1 + (old.has_value() ? old->number : facts.epochs_before),
                    .members = facts.members,
                    .secret = facts.secret,
                    .first_iteration = from.state.iteration,
                    .state_epoch = from.state.epoch,
                    .from_checkpoint = from.checkpoint,
                    .state_ranks = are_given ? states.Givers(from.state) : std::vector<int32_t>{}},
          .reason = {}};
}

}  // namespace geopipe
