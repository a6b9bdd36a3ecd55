#include "coordinator/core/run/epoch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Kind = EpochDecision::Kind;
using Stage = WorkerFacts::Stage;

EpochMember Member(int32_t device, uint64_t incarnation = 1) { return {{"north", "n0", device}, incarnation}; }

WorkerFacts Resting(const EpochMember& member, uint64_t epoch, int64_t next, v1::WorkerPhase phase) {
  return {.worker = member,
          .stage = Stage::kAttached,
          .epoch = epoch,
          .phase = phase,
          .states = {{.iteration = next, .epoch = epoch}}};
}

TEST_CASE("the first epoch begins when the plan is there and all its workers are") {
  EpochFacts facts{.wanted = true, .members = {}, .workers = {}, .end_iteration = 10, .secret = "s"};
  facts.workers = {Resting(Member(0), 0, 0, v1::WORKER_PHASE_IDLE), Resting(Member(1), 0, 0, v1::WORKER_PHASE_IDLE)};
  CHECK(NextEpoch(std::nullopt, facts).reason == "there is no plan");
  facts.members = {Member(1), Member(0)};
  facts.workers[0].stage = Stage::kStarting;
  CHECK(NextEpoch(std::nullopt, facts).reason == "worker north/n0/0 has not said hello");
  facts.workers[0].stage = Stage::kAttached;
  const EpochDecision decision = NextEpoch(std::nullopt, facts);
  REQUIRE(decision.kind == Kind::kNew);
  CHECK(decision.epoch == Epoch{.number = 1, .members = facts.members, .secret = "s", .first_iteration = 0});
  facts.workers.erase(facts.workers.begin());
  CHECK(NextEpoch(std::nullopt, facts).kind == Kind::kWait);
}

TEST_CASE("an epoch that has ended is followed by one from the same iteration, and only when one member has left it") {
  const Epoch old{.number = 3, .members = {Member(0), Member(1)}, .secret = "old", .first_iteration = 2};
  EpochFacts facts{.wanted = true, .members = old.members, .workers = {}, .end_iteration = 10, .secret = "new"};
  facts.workers = {Resting(Member(0), 3, 5, v1::WORKER_PHASE_TRAINING),
                   Resting(Member(1), 3, 5, v1::WORKER_PHASE_TRAINING)};
  CHECK(NextEpoch(old, facts).reason == "epoch 3 runs");
  facts.workers[0].phase = v1::WORKER_PHASE_ENDED;
  CHECK(NextEpoch(old, facts).reason == "worker north/n0/1 is about to end its epoch");
  facts.workers[1].phase = v1::WORKER_PHASE_ENDED;
  CHECK(NextEpoch(old, facts).epoch ==
        Epoch{.number = 4, .members = old.members, .secret = "new", .first_iteration = 5, .state_epoch = 3});
  facts.wanted = false;
  CHECK(NextEpoch(old, facts).reason == "the job is paused");
  facts.wanted = true;
  facts.workers[1].states = {{.iteration = 6, .epoch = 3}};
  CHECK(NextEpoch(old, facts).reason ==
        "worker north/n0/0 has the state before iteration 5 of epoch 3 and worker north/n0/1 has the state before "
        "iteration 6 of epoch 3");
  facts.workers[0].states = facts.workers[1].states = {{.iteration = 10, .epoch = 3}};
  CHECK(NextEpoch(old, facts).reason == "all iterations are done");
}

TEST_CASE("after a loss the next epoch begins with the newest state that all its members can have") {
  const Epoch old{.number = 3, .members = {Member(0), Member(1)}, .secret = "old", .first_iteration = 2};
  EpochFacts facts{
      .wanted = true, .members = {Member(0), Member(1, 7)}, .workers = {}, .end_iteration = 10, .secret = "new"};
  facts.told_iterations = 6;
  facts.may_go_back = true;
  facts.checkpoints = {{.iteration = 2, .incarnation = 9, .epoch = 1}, {.iteration = 4, .incarnation = 9, .epoch = 3}};
  facts.workers = {Resting(Member(0), 3, 6, v1::WORKER_PHASE_ENDED),
                   Resting(Member(1, 7), 0, 0, v1::WORKER_PHASE_IDLE)};
  WorkerFacts& survivor = facts.workers[0];
  WorkerFacts& successor = facts.workers[1];
  successor.states.clear();

  SECTION("none is held by all: the newest checkpoint") {
    const Epoch epoch = NextEpoch(old, facts).epoch;
    CHECK(epoch.number == 4);
    CHECK(epoch.first_iteration == 4);
    CHECK(epoch.from_checkpoint == facts.checkpoints[1]);
  }
  SECTION("nor is there a checkpoint: the beginning") {
    facts.checkpoints.clear();
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 0);
    CHECK(NextEpoch(old, facts).epoch.state_epoch == 0);
    CHECK_FALSE(NextEpoch(old, facts).epoch.from_checkpoint.has_value());
  }
  SECTION("one that is kept by both") {
    survivor.states = {{.iteration = 6, .epoch = 3}, {.iteration = 5, .epoch = 3}};
    successor.states = {{.iteration = 5, .epoch = 3}, {.iteration = 4, .epoch = 3}};
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 5);
    CHECK(NextEpoch(old, facts).epoch.state_epoch == 3);
    CHECK_FALSE(NextEpoch(old, facts).epoch.from_checkpoint.has_value());
  }
  SECTION("a state of another epoch is another state") {
    successor.states = {{.iteration = 6, .epoch = 2}};
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 4);
  }
  SECTION("the newest whose figures are all told, so that none are missing") {
    survivor.states = successor.states = {{.iteration = 7, .epoch = 3}, {.iteration = 6, .epoch = 3}};
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 6);
    facts.told_iterations = 7;
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 7);
    facts.told_iterations = 3;  // they are lost anyway
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 7);
  }
  SECTION("a checkpoint that is newer than what is kept") {
    survivor.states = successor.states = {{.iteration = 3, .epoch = 2}};
    CHECK(NextEpoch(old, facts).epoch.from_checkpoint == facts.checkpoints[1]);
  }
  SECTION("without a loss nothing is a reason to go back") {
    facts.may_go_back = false;
    CHECK(NextEpoch(old, facts).reason ==
          "worker north/n0/0 has the state before iteration 6 of epoch 3 and worker north/n0/1 has no state");
  }
  SECTION("all iterations are done, and a worker that has done them was lost: once more, for the last state") {
    facts.end_iteration = 6;
    successor.states = survivor.states;
    CHECK(NextEpoch(old, facts).kind == Kind::kNew);
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 6);
    facts.may_go_back = false;
    CHECK(NextEpoch(old, facts).reason == "all iterations are done");
  }
}

TEST_CASE("a state that a replica has is given by it to those of its replicas that lack it") {
  const std::vector<EpochMember> before{Member(0), Member(1), Member(2), Member(3)};
  const Epoch old{.number = 3, .members = before, .secret = "old", .first_iteration = 2};
  EpochFacts facts{.wanted = true,
                   .members = {Member(0), Member(1), Member(2, 7), Member(3)},
                   .replica_groups = {0, 1, 0, 1},
                   .workers = {},
                   .end_iteration = 10,
                   .secret = "new"};
  facts.told_iterations = 6;
  facts.may_go_back = true;
  facts.checkpoints = {{.iteration = 4, .incarnation = 9, .epoch = 3}};
  for (const EpochMember& member : facts.members) {
    facts.workers.push_back(Resting(member, 3, 6, v1::WORKER_PHASE_ENDED));
  }
  std::vector<StateIdentity>& lost = facts.workers[2].states;
  lost.clear();

  SECTION("the lost one's replica has it") {
    const Epoch epoch = NextEpoch(old, facts).epoch;
    CHECK(epoch.first_iteration == 6);
    CHECK(epoch.state_epoch == 3);
    CHECK_FALSE(epoch.from_checkpoint.has_value());
    CHECK(epoch.state_ranks == std::vector<int32_t>{0, Epoch::kNobody, 0, Epoch::kNobody});
  }
  SECTION("all have it: nobody gives any") {
    lost = facts.workers[0].states;
    CHECK(NextEpoch(old, facts).epoch.state_ranks.empty());
  }
  SECTION("of each group another has it") {
    facts.workers[0].states = {{.iteration = 5, .epoch = 3}};
    facts.workers[1].states.clear();
    lost = {{.iteration = 6, .epoch = 3}, {.iteration = 5, .epoch = 3}};
    const Epoch epoch = NextEpoch(old, facts).epoch;
    CHECK(epoch.first_iteration == 6);
    CHECK(epoch.state_ranks == std::vector<int32_t>{2, 3, 2, 3});
  }
  SECTION("no replica has it: the checkpoint") {
    facts.workers[0].states.clear();
    const Epoch epoch = NextEpoch(old, facts).epoch;
    CHECK(epoch.from_checkpoint == facts.checkpoints[0]);
    CHECK(epoch.state_ranks.empty());
  }
  SECTION("without replicas nobody gives any") {
    facts.replica_groups.clear();
    CHECK(NextEpoch(old, facts).epoch.from_checkpoint == facts.checkpoints[0]);
  }
  SECTION("a checkpoint that is newer") {
    facts.checkpoints[0].iteration = 7;
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 7);
    CHECK(NextEpoch(old, facts).epoch.state_ranks.empty());
  }
  SECTION("what is told is preferred, where all can have it") {
    facts.told_iterations = 5;
    facts.workers[0].states.push_back({.iteration = 5, .epoch = 3});
    facts.workers[3].states.push_back({.iteration = 5, .epoch = 3});
    const Epoch epoch = NextEpoch(old, facts).epoch;
    CHECK(epoch.first_iteration == 5);
    CHECK(epoch.state_ranks == std::vector<int32_t>{0, 3, 0, 3});
  }
  SECTION("the initial state is everybody's") {
    facts.checkpoints.clear();
    for (WorkerFacts& worker : facts.workers) {
      worker.states.clear();
    }
    facts.workers[0].states = {StateIdentity{}};
    facts.workers[1].states = {StateIdentity{}};
    CHECK(NextEpoch(old, facts).epoch.first_iteration == 0);
    CHECK(NextEpoch(old, facts).epoch.state_ranks.empty());
  }
}

TEST_CASE("an old epoch whose members are all gone is over when one has a successor that is there") {
  const Epoch old{.number = 3, .members = {Member(0), Member(1)}, .secret = "old", .first_iteration = 2};
  EpochFacts facts{
      .wanted = true, .members = {Member(0, 6), Member(1, 7)}, .workers = {}, .end_iteration = 10, .secret = "new"};
  facts.may_go_back = true;
  facts.workers = {Resting(Member(0, 6), 0, 0, v1::WORKER_PHASE_IDLE),
                   Resting(Member(1, 7), 0, 0, v1::WORKER_PHASE_IDLE)};
  CHECK(NextEpoch(old, facts).kind == Kind::kNew);
  facts.workers[0].stage = facts.workers[1].stage = Stage::kStarting;
  CHECK(NextEpoch(old, facts).kind != Kind::kNew);
}

// The newest state that is in all lists, of those up to an iteration.
std::optional<StateIdentity> CommonState(const std::vector<std::set<StateIdentity>>& lists, int64_t up_to) {
  std::optional<StateIdentity> newest;
  for (const StateIdentity& state : lists.front()) {  // ascending
    if (state.iteration <= up_to &&
        std::ranges::all_of(lists, [&](const auto& list) { return list.contains(state); })) {
      newest = state;
    }
  }
  return newest;
}

void CheckBeginning(const std::optional<Epoch>& old, const EpochFacts& facts, const Epoch& epoch,
                    const std::optional<StateIdentity>& common) {
  const bool goes_back = !old.has_value() || facts.may_go_back;
  int64_t newest_checkpoint = -1;
  for (const CheckpointIdentity& checkpoint : facts.checkpoints) {
    newest_checkpoint = goes_back ? std::max(newest_checkpoint, checkpoint.iteration) : -1;
  }
  if (epoch.from_checkpoint.has_value()) {
    CHECK(goes_back);
    CHECK(epoch.from_checkpoint->iteration == newest_checkpoint);
    CHECK(epoch.first_iteration == newest_checkpoint);
    CHECK((!common.has_value() || common->iteration < newest_checkpoint));
  } else if (common.has_value()) {
    CHECK(epoch.first_iteration == common->iteration);
    CHECK(epoch.state_epoch == common->epoch);
    CHECK(common->iteration >= newest_checkpoint);
  } else {
    CHECK(goes_back);
    CHECK(facts.checkpoints.empty());
    CHECK(epoch.first_iteration == 0);
    CHECK(epoch.state_epoch == 0);
  }
  CHECK((epoch.first_iteration < facts.end_iteration || facts.may_go_back));
}

// The rules of epoch.h, read from the facts alone and not in the order the code has them.
void CheckRules(const std::optional<Epoch>& old, const EpochFacts& facts, const EpochDecision& decision) {
  const auto of = [&](const EpochMember& member) {
    return std::ranges::find(facts.workers, member, &WorkerFacts::worker);
  };
  const auto left = [&](const EpochMember& member) {
    const auto worker = of(member);
    const bool over = worker != facts.workers.end() &&
                      (worker->phase == v1::WORKER_PHASE_ENDED || worker->phase == v1::WORKER_PHASE_FINISHED);
    const bool followed = std::ranges::any_of(facts.workers, [&](const WorkerFacts& each) {
      return each.attached() && each.worker.worker == member.worker && each.worker.incarnation > member.incarnation;
    });
    return followed ||
           (worker != facts.workers.end() && (worker->epoch > old->number || (worker->epoch == old->number && over)));
  };
  const bool can_finish_iterations = old.has_value() && std::ranges::none_of(old->members, left);
  std::vector<std::set<StateIdentity>> states;
  bool ready = !facts.members.empty();
  for (const EpochMember& member : facts.members) {
    const auto worker = of(member);
    ready = ready && worker != facts.workers.end();
    if (worker != facts.workers.end()) {
      states.emplace_back(worker->states.begin(), worker->states.end());
      ready = ready && worker->attached() && worker->phase != v1::WORKER_PHASE_TRAINING &&
              worker->phase != v1::WORKER_PHASE_PREPARED && worker->phase != v1::WORKER_PHASE_PREPARING &&
              worker->phase != v1::WORKER_PHASE_PROFILING && worker->phase != v1::WORKER_PHASE_UNSPECIFIED;
    }
  }
  std::optional<StateIdentity> common = states.empty() ? std::nullopt : CommonState(states, 1000);
  if (common.has_value() && facts.may_go_back) {
    common = CommonState(states, facts.told_iterations).value_or(*common);
  }
  const bool stuck = old.has_value() && !common.has_value() && !facts.may_go_back;
  switch (decision.kind) {
    case Kind::kNew: {
      CHECK_FALSE(can_finish_iterations);
      CHECK_FALSE(stuck);
      CHECK(facts.wanted);
      CHECK(ready);
      CHECK(decision.epoch.number == (old.has_value() ? old->number + 1 : 1));
      CHECK(decision.epoch.members == facts.members);
      CHECK(decision.epoch.secret == facts.secret);
      CheckBeginning(old, facts, decision.epoch, common);
      return;
    }
    case Kind::kFail:
      CHECK_FALSE(decision.reason.empty());
      CHECK((!can_finish_iterations && facts.wanted && ready && stuck));
      return;
    case Kind::kWait:
      CHECK_FALSE(decision.reason.empty());
      CHECK((can_finish_iterations || !facts.wanted || !ready || (!stuck && !facts.may_go_back)));
      return;
  }
}

TEST_CASE("what comes next follows the rules, whatever the facts") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t below) { return static_cast<int64_t>(random() % below); };
  std::map<Kind, int> seen;
  for (int round = 0; round < 100'000; ++round) {
    std::optional<Epoch> old;
    if (pick(4) > 0) {
      old = Epoch{.number = static_cast<uint64_t>(1 + pick(3)), .members = {}, .secret = "old", .first_iteration = 0};
    }
    EpochFacts facts{.wanted = pick(8) > 0, .members = {}, .workers = {}, .end_iteration = 4, .secret = "new"};
    const int64_t common = pick(5);
    facts.may_go_back = pick(3) == 0;
    facts.told_iterations = pick(5);
    for (int64_t i = pick(3); i > 0; --i) {
      facts.checkpoints.push_back({.iteration = pick(5), .incarnation = 1, .epoch = 1, .sequence_length = 8});
    }
    const auto usual = static_cast<v1::WorkerPhase>(pick(2) == 0 ? int64_t{v1::WORKER_PHASE_ENDED}
                                                                 : pick(v1::WORKER_PHASE_FINISHED + 1));
    for (int32_t device = 0; device < 1 + pick(4); ++device) {
      const EpochMember member = Member(device, static_cast<uint64_t>(1 + pick(16) / 15));
      WorkerFacts worker = Resting(member,
                                   static_cast<uint64_t>(pick(12) == 0 ? pick(5)
                                                         : old         ? old->number
                                                                       : 0),
                                   pick(12) == 0 ? pick(5) : (old ? common : 0), usual);
      worker.stage = static_cast<Stage>(pick(20) > 0 ? 1 : 2 * pick(2));
      if (pick(3) == 0) {
        worker.states.push_back({.iteration = common == 0 ? 1 : common - 1, .epoch = old ? old->number : 0});
      }
      if (pick(20) == 0) {
        worker.states.clear();
      }
      if (pick(20) == 0) {
        worker.phase = static_cast<v1::WorkerPhase>(pick(v1::WORKER_PHASE_FINISHED + 1));
      }
      if (pick(10) > 0) {
        facts.members.push_back(member);
      }
      if (old.has_value() && pick(10) > 0) {
        old->members.push_back(Member(device));
      }
      if (pick(40) > 0) {
        facts.workers.push_back(worker);
      }
    }
    const EpochDecision decision = NextEpoch(old, facts);
    INFO("round " << round);
    CheckRules(old, facts, decision);
    CHECK(NextEpoch(old, facts).kind == decision.kind);
    ++seen[decision.kind];
  }
  // The facts are worth something only if each answer comes often.
  CHECK(seen[Kind::kNew] > 5'000);
  CHECK(seen[Kind::kWait] > 20'000);
  CHECK(seen[Kind::kFail] > 1'000);
}

}  // namespace
}  // namespace geopipe
