#include "coordinator/core/life/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <iterator>
#include <map>
#include <random>

#include "runtime/base/files.h"
#include "tests/coordinator/core/federation.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

using Catch::Contains;
using Stage = WorkerFacts::Stage;

const WorkerKey kNorth{"north", "n0", 0};
const WorkerKey kEast{"east", "n0", 0};
constexpr int64_t kSecondNs = 1'000'000'000;

JobSpec JobAtTwo() {
  JobSpec job = Federation::TinyJob({"north", "east"});
  job.checkpoint = {.path = "/checkpoints", .every = 1, .keep = 3};
  job.grace_ns = 30 * kSecondNs;
  return job;
}

Allocation TwoDevices() {
  Allocation allocation;
  for (const char* site : {"north", "east"}) {
    v1::NodeSpec spec;
    spec.set_site(site);
    spec.set_node("n0");
    allocation.sites.push_back({.name = site, .nodes = {{.spec = spec, .devices = {0}}}});
  }
  return allocation;
}

// A job of two workers in the state, in the middle of its first epoch where it has one, of which nothing is wrong.
struct Scene {
  explicit Scene(JobState state) : life(JobAtTwo(), RunOptions(), TwoDevices(), 7) {
    crew.restarts = Restarts(limits.restarts_per_hour, 7);
    crew.times.since_ns = crew.times.progress_ns = crew.times.told_ns = now_ns;
    told.evaluations = EvaluationLog(life.job.evaluation, life.end());
    life.state = state;
    const bool measures = state == v1::JOB_STATE_PROFILING;
    for (const auto& [key, post] : life.posts) {
      crew.workers[key] = {.worker = {key, post.incarnation},
                           .stage = measures ? Stage::kStarting : Stage::kAttached,
                           .phase = v1::WORKER_PHASE_IDLE};
    }
    if (measures || state == v1::JOB_STATE_PLANNING) {
      return;
    }
    Plan();
    life.epoch = Epoch{.number = 1, .members = life.Members(), .secret = "s"};
    life.committed = state != v1::JOB_STATE_DEPLOYING;
    crew.rollout = PlanRollout(1, life.plan->plan.grid, life.members, life.committed);
    crew.checkpoints.BeginEpoch(*life.epoch, 7, 64, false);
    All(v1::WORKER_PHASE_TRAINING, 1);
    if (state == v1::JOB_STATE_PAUSED || state == v1::JOB_STATE_REPLANNING) {
      life.wants = {.pause = state == v1::JOB_STATE_PAUSED,
                    .move = state == v1::JOB_STATE_REPLANNING,
                    .move_cause = "site east is drained"};
      life.ended_at = 1;
      All(v1::WORKER_PHASE_ENDED, 1);
    }
    life.may_go_back = life.ending = state == v1::JOB_STATE_RECOVERING;
  }

  void Plan() {
    PlanningInput input{.job = life.job, .run = {}, .cluster = {}};
    input.cluster.sites.resize(2);
    input.cluster.sites[0].name = "north";
    input.cluster.sites[1].name = "east";
    PlanResult result = Federation::PlanFor(input, kSecondNs);
    REQUIRE(life.SetPlan(&result).ok());
    told.iterations = IterationLog(2, 0, 100);
  }
  // All workers are in the phase, and have done the iterations below `next`.
  void All(v1::WorkerPhase phase, int64_t next) {
    for (auto& [key, worker] : crew.workers) {
      worker.epoch = 1;
      worker.phase = phase;
      worker.next_iteration = next;
      worker.states = {{.iteration = next, .epoch = 1}};
    }
    crew.reached = next;
  }
  void Tell(int64_t next) {
    told.iterations.OnRankAt(0, next);
    told.iterations.OnRankAt(1, next);
  }
  void Finish() {
    All(v1::WORKER_PHASE_FINISHED, life.end());
    Tell(life.end());
    told.evaluations.GiveUpBefore(life.end() + 1);
  }
  void List(int64_t iteration) {
    life.checkpoints.listed.push_back(
        {.identity = {.iteration = iteration, .incarnation = 7, .epoch = 1, .sequence_length = 64},
         .parts = {{kNorth.node_key()}, {kEast.node_key()}}});
  }
  void Silence(const WorkerKey& worker) {
    crew.silences.push_back({.node = worker.node_key(), .is_silent = true, .silent_ns = 5 * kSecondNs});
  }
  void Add(FailureEvidence evidence) { crew.diagnosis.Add(now_ns, std::move(evidence)); }

  Decision Next() const { return geopipe::Next({life, crew, told, limits, now_ns}); }

  JobLife life;
  CrewFacts crew;
  RunTelemetry told;
  JobRunLimits limits;
  int64_t now_ns = 100 * kSecondNs;
};

struct Case {
  JobState state;
  std::function<void(Scene&)> happens;
  std::string sentence;  // a part of it
};

FailureEvidence Evidence(FailureEvidence::Worth worth, bool permanent = false) {
  return {.worth = worth, .sentence = "worker east/n0/0 was killed", .kind = "killed", .permanent = permanent};
}

// The rows of the table, each with facts that it is there for.
using Cases = std::map<std::string_view, Case>;

constexpr JobState kRunning = v1::JOB_STATE_RUNNING;
constexpr JobState kRecovering = v1::JOB_STATE_RECOVERING;
constexpr JobState kReplanning = v1::JOB_STATE_REPLANNING;

Cases LossCases() {
  using Worth = FailureEvidence::Worth;
  const auto lose = [](Scene& s) {
    s.life.posts.at(kEast).duty = Post::Duty::kLost;
    s.crew.workers.at(kEast).stage = Stage::kEnded;
  };
  return {
      {"outrun", {kRunning, [](Scene& s) { s.crew.later = "up to epoch 1"; }, "the job store is older than this run"}},
      {"fault", {kRunning, [](Scene& s) { s.crew.fault = "they read different data"; }, "different data"}},
      {"hopeless", {kRunning, [](Scene& s) { s.Add(Evidence(Worth::kRoot, true)); }, "was killed"}},
      {"lose", {kRunning, [](Scene& s) { s.Add(Evidence(Worth::kRoot)); }, "was killed"}},
      {"leave",
       {kRecovering, [](Scene& s) { s.crew.around.exit = {.why = Exit::Why::kGone, .cause = "node east/n0 is gone"}; },
        "node east/n0 is gone"}},
      {"lacking", {v1::JOB_STATE_DEPLOYING, [](Scene& s) { s.crew.lacking = "cannot be read"; }, "cannot be read"}},
      {"restart", {kRecovering, lose, ""}},
      {"diagnose", {kRunning, [](Scene& s) { s.Add(Evidence(Worth::kUnexplained)); }, ""}},
  };
}

Cases StartCases() {
  const auto none = [](Scene&) {};
  return {
      {"deployed",
       {v1::JOB_STATE_DEPLOYING,
        [](Scene& s) { s.crew.rollout = PlanRollout(1, s.life.plan->plan.grid, s.life.members, true); },
        "all 2 ranks have committed epoch 1"}},
      {"done",
       {kRunning,
        [](Scene& s) {
          s.Finish();
          s.List(s.life.end());
        },
        "all 3 iterations are done"}},
      {"measure",
       {v1::JOB_STATE_PROFILING,
        [](Scene& s) { s.crew.workers.at(kNorth).stage = s.crew.workers.at(kEast).stage = Stage::kAttached; }, ""}},
      {"measured",
       {v1::JOB_STATE_PROFILING,
        [](Scene& s) {
          s.crew.measuring = true;
          s.crew.rounds = ProfileRounds({}, {kNorth, kEast});
        },
        "all 2 workers are up"}},
      {"search", {v1::JOB_STATE_PLANNING, none, ""}},
  };
}

Cases EndCases() {
  const auto none = [](Scene&) {};
  return {
      {"rest",
       {kRunning,
        [](Scene& s) {
          s.life.wants.pause = s.life.ending = true;
          s.All(v1::WORKER_PHASE_ENDED, 2);
          s.crew.ends_at = 2;
          s.Tell(2);
        },
        "paused before iteration 2"}},
      {"close", {kRunning, [](Scene& s) { s.crew.around.closing = "enough"; }, ""}},
      {"move",
       {kRunning, [](Scene& s) { s.crew.around.exit = {.why = Exit::Why::kMove, .cause = "site east is drained"}; },
        "site east is drained"}},
      {"end", {kRunning, [](Scene& s) { s.life.wants.pause = true; }, ""}},
      {"moved", {kReplanning, [](Scene& s) { s.List(1); }, "the state before iteration 1 is safe"}},
      {"save", {kReplanning, none, ""}},
      {"begin",
       {v1::JOB_STATE_PAUSED,
        [](Scene& s) {
          s.life.wants.pause = false;
          s.life.secret = "fresh";
          s.Tell(1);
        },
        "epoch 2 goes on from iteration 1"}},
      {"gaps",
       {kRunning,
        [](Scene& s) {
          s.All(v1::WORKER_PHASE_FINISHED, 3);
          s.now_ns += 120 * kSecondNs;
        },
        ""}},
      {"late",
       {kRunning, [](Scene& s) { s.now_ns += s.limits.progress_timeout_ns; }, "iteration 0 has not finished within"}},
  };
}

Cases WaitCases() {
  return {
      {"agents", {kRecovering, [](Scene& s) { s.Silence(kEast); }, "it goes on when agent east/n0 can be heard"}},
      {"figures",
       {v1::JOB_STATE_PAUSED, [](Scene& s) { s.life.wants.pause = false; },
        "it goes on when its workers have told what they have done"}},
      {"fate",
       {kRecovering,
        [&](Scene& s) {
          s.life.posts.at(kEast).duty = Post::Duty::kLost;
          s.crew.workers.at(kEast).alone_since_ns = s.now_ns;
        },
        "no agent knows the fate of worker east/n0/0"}},
      {"fitness",
       {kRecovering,
        [&](Scene& s) {
          s.life.posts.at(kEast).duty = Post::Duty::kLost;
          s.crew.workers.at(kEast).of_node = true;
          s.crew.workers.at(kEast).trouble = "worker east/n0/0 cannot be started: no such program";
          s.crew.times.recover_at_ns = s.now_ns + 1;
        },
        "its node is unfit, and it is tried again every 10.0 s: worker east/n0/0 cannot be started"}},
      {"ears",
       {kRunning,
        [](Scene& s) {
          s.life.wants.pause = true;
          s.Silence(kEast);
        },
        "it pauses when agent east/n0 can be heard"}},
      {"reports",
       {kRunning,
        [](Scene& s) {
          s.Finish();
          s.Silence(kEast);
        },
        "it waits for the reports of agent east/n0"}},
      {"leaving",
       {kRunning,
        [](Scene& s) {
          s.life.wants = {.move = true, .move_cause = "site east is drained"};
          s.life.ending = true;
        },
        "it leaves after the iteration under way: site east is drained"}},
      {"last", {kRunning, [](Scene& s) { s.Finish(); }, "the last state is being written"}},
      {"any",
       {v1::JOB_STATE_DEPLOYING,
        [](Scene& s) {
          s.Silence(kNorth);
          s.Silence(kEast);
        },
        "none of its agents can be heard"}},
      {"pause",
       {kRunning, [](Scene& s) { s.life.wants.pause = s.life.ending = true; },
        "it pauses after the iteration under way"}},
  };
}

TEST_CASE("each rule of a job's life has facts that it decides, and says so") {
  Cases cases = LossCases();
  for (Cases more : {StartCases(), EndCases(), WaitCases()}) {
    cases.merge(more);
  }
  CHECK(cases.size() == Rules().size() + Waits().size());
  for (const std::span<const Rule> table : {Rules(), Waits()}) {
    for (const Rule& rule : table) {
      INFO(rule.name);
      REQUIRE(cases.contains(rule.name));
      const Case& of_rule = cases.at(rule.name);
      Scene scene(of_rule.state);
      of_rule.happens(scene);
      const Decision decision = scene.Next();
      CHECK(decision.rule == rule.name);
      CHECK_THAT(decision.sentence, Contains(of_rule.sentence));
      CHECK_FALSE(rule.when.empty());
      CHECK_FALSE(rule.then.empty());
    }
  }
}

TEST_CASE("docs/life.md has the table of rules as it is") {
  const std::string page = ReadFile(std::string(GEOPIPE_SOURCE_DIR) + "/docs/life.md", 1 << 20).value();
  for (const std::span<const Rule> table : {Rules(), Waits()}) {
    std::string rows = "|---|---|---|---|\n";
    for (const Rule& rule : table) {
      std::vector<std::string_view> states;
      std::ranges::transform(rule.in, std::back_inserter(states), JobStateName);
      rows += fmt::format("| {} | {} | {} | {} |\n", rule.name,
                          states.empty() ? "any" : fmt::format("{}", fmt::join(states, ", ")), rule.when, rule.then);
    }
    CHECK_THAT(page, Contains(rows + "\n"));
  }
}

TEST_CASE("a job of which nothing is wrong or wanted waits in each state") {
  for (const JobState state : {v1::JOB_STATE_PROFILING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING,
                               v1::JOB_STATE_PAUSED, v1::JOB_STATE_RECOVERING}) {
    INFO(JobStateName(state));
    const Decision decision = Scene(state).Next();
    CHECK(decision.kind == Decision::Kind::kWait);
    CHECK(decision.sentence.empty());
  }
}

// Changes one fact or another.
void Disturb(Scene& s, std::mt19937_64& random) {
  const auto pick = [&](uint64_t below) { return static_cast<int64_t>(random() % below); };
  const WorkerKey& key = pick(2) == 0 ? kNorth : kEast;
  WorkerFacts& worker = s.crew.workers.at(key);
  switch (pick(21)) {
    case 0:
      return s.Add(Evidence(static_cast<FailureEvidence::Worth>(pick(3)), pick(3) == 0));
    case 1:
      worker.trouble = "it is stuck";
      return;
    case 2:
      worker.stage = static_cast<Stage>(pick(3));
      return;
    case 3:
      worker.phase = static_cast<v1::WorkerPhase>(pick(v1::WORKER_PHASE_FINISHED + 1));
      return;
    case 4:
      worker.states.clear();
      return;
    case 5:
      s.life.posts.at(key).duty = Post::Duty::kLost;
      return;
    case 6:
      worker.alone_since_ns = s.now_ns - pick(60) * kSecondNs;
      return;
    case 7:
      return s.Silence(key);
    case 8:
      s.life.wants.pause = pick(2) == 0;
      return;
    case 9:
      s.life.wants.move = pick(2) == 0;
      return;
    case 10:
      s.life.ending = pick(2) == 0;
      return;
    case 11:
      s.life.secret = "fresh";
      return;
    case 12:
      s.life.may_go_back = true;
      return;
    case 13:
      s.crew.around.exit = {.why = static_cast<Exit::Why>(pick(3)), .cause = "so it is"};
      return;
    case 14:
      s.crew.around.closing = "enough";
      return;
    case 15:
      return s.List(pick(4));
    case 16:
      s.now_ns += pick(700) * kSecondNs;
      return;
    case 17:
      s.crew.ends_at = s.crew.reached;
      return;
    case 19:
      s.crew.later = "up to epoch 1";
      return;
    case 18:
      return s.life.epoch.has_value()
                 ? s.All(pick(2) == 0 ? v1::WORKER_PHASE_ENDED : v1::WORKER_PHASE_FINISHED, pick(4))
                 : void();
    default:
      return s.life.epoch.has_value() ? s.Tell(s.crew.reached) : void();
  }
}

TEST_CASE("whatever the facts, there is one decision, and it is a step that the state allows") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  constexpr JobState kStates[] = {v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING,   v1::JOB_STATE_DEPLOYING,
                                  v1::JOB_STATE_RUNNING,   v1::JOB_STATE_RECOVERING, v1::JOB_STATE_PAUSED,
                                  v1::JOB_STATE_REPLANNING};
  std::map<std::string_view, int> seen;
  for (int round = 0; round < 100'000; ++round) {
    INFO("round " << round);
    Scene scene(kStates[random() % std::size(kStates)]);
    for (uint64_t i = random() % 6; i > 0; --i) {
      Disturb(scene, random);
    }
    const Decision decision = scene.Next();
    const Decision again = scene.Next();
    REQUIRE((decision.rule == again.rule && decision.kind == again.kind && decision.sentence == again.sentence));
    ++seen[decision.rule];
    if (decision.kind == Decision::Kind::kEnter && !MayFollow(scene.life.state, decision.to)) {
      FAIL(decision.rule << " enters " << JobStateName(decision.to) << " from " << JobStateName(scene.life.state));
    }
    if (decision.kind == Decision::Kind::kBegin) {
      for (const auto& [key, worker] : scene.crew.workers) {
        CHECK((worker.attached() && worker.Rests() && scene.life.posts.at(key).duty == Post::Duty::kServes));
      }
      CHECK(decision.epoch.secret == "fresh");
    }
    if (decision.kind == Decision::Kind::kEnd || decision.kind == Decision::Kind::kSave) {
      CHECK(scene.crew.all_hear());
    }
  }
  for (const Rule& rule : Rules()) {
    INFO(rule.name);
    CHECK((seen[rule.name] > 0 || rule.name == "fault" || rule.name == "lacking" || rule.name == "deployed" ||
           rule.name == "measured" || rule.name == "gaps"));
  }
}

}  // namespace
}  // namespace geopipe
