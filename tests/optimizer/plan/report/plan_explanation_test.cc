#include "optimizer/plan/report/plan_explanation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/model/plan/plan_memory.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

struct Explained {
  PlanResult result;
  PlanExplanation explanation;
};

Explained Explain(const PlanRequest& request) {
  Explained explained;
  explained.result = MakePlan(request).value();
  const SimulationResult simulated =
      Simulate(explained.result.schedule, explained.result.costs, {.record_timeline = true}).value();
  explained.explanation = ExplainPlan(request.job, explained.result, simulated).value();
  return explained;
}

const Remedy* Find(const PlanExplanation& explanation, Remedy::Kind kind, int32_t boundary) {
  const auto found = std::find_if(explanation.remedies.begin(), explanation.remedies.end(), [&](const Remedy& remedy) {
    return remedy.kind == kind && remedy.boundary == boundary;
  });
  return found == explanation.remedies.end() ? nullptr : &*found;
}

TEST_CASE("the parts make up the bubble, the slowest stage is bound by itself, and remedies are worth while") {
  // Near links do not take back at the crossings what spreading the work gains.
  PlanRequest request = test::PaperRequest();
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 1'000;
  }
  const auto [result, explanation] = Explain(request);
  REQUIRE(explanation.stages.size() == 8);
  double bubble = 0;
  for (const BubblePart& part : explanation.bubble) {
    bubble += part.ratio;
  }
  CHECK(bubble == Approx(result.prediction.bubble_ratio));
  // The last stage holds the head as well.
  CHECK(explanation.stages[7].limit == StageLimit::kCompute);
  CHECK(explanation.stages[0].limit == StageLimit::kStage);
  CHECK(explanation.stages[0].index == 7);
  const Remedy* even = Find(explanation, Remedy::Kind::kEvenStages, -1);
  REQUIRE(even != nullptr);
  CHECK(even->gain > 0.03);
  for (size_t i = 0; i < explanation.remedies.size(); ++i) {
    CHECK(explanation.remedies[i].gain >= kWorthwhile);
    CHECK((i == 0 || explanation.remedies[i].gain <= explanation.remedies[i - 1].gain));
  }
  for (const StageExplanation& stage : explanation.stages) {
    CHECK(stage.peak_bytes <= stage.capacity_bytes);
    CHECK(stage.room_micro_batches >= 0);
    CHECK(stage.largest_memory_bytes > 0);
  }
}

// ΔN = 0 over far links, with layers, b and s that leave nothing else to choose.
PlanRequest FarWithoutDeltaN() {
  PlanRequest request = test::PaperRequest();
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  request.job.parallelism.recompute = Recompute::kNone;
  request.fixed_delta_n = {0};
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 60 * test::kMillisecond;
  }
  return request;
}

TEST_CASE("over far links ΔN is what would help, and stages wait for links") {
  const auto [result, explanation] = Explain(FarWithoutDeltaN());
  const auto waits = std::count_if(explanation.stages.begin(), explanation.stages.end(),
                                   [](const StageExplanation& stage) { return stage.limit == StageLimit::kLink; });
  CHECK(waits >= 4);
  const Remedy* all = Find(explanation, Remedy::Kind::kDeltaN, -1);
  REQUIRE(all != nullptr);
  CHECK(all->gain > 0.05);
  CHECK(all->stage == -1);
  CHECK(Find(explanation, Remedy::Kind::kNoDelay, -1) != nullptr);
  CHECK(Find(explanation, Remedy::Kind::kLatency, 2) != nullptr);
}

TEST_CASE("room is for micro-batches with their messages") {
  const PlanRequest request = test::PaperRequest();
  const auto [result, explanation] = Explain(request);
  const std::vector<StageNeeds> needs = NeedsOfPlan(request.job, result.plan);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    // Slots both ways and an activation to send; at the ends one of the two sides.
    const int64_t messages = needs[stage].below ? (needs[stage].above ? 3 : 1) : 2;
    const int64_t each = needs[stage].alone.activation_bytes + messages * needs[stage].message_bytes;
    const int64_t room =
        result.plan.pipeline_ranks[stage].capacity_bytes - result.plan.pipeline_ranks[stage].peak_bytes;
    CHECK(explanation.stages[stage].room_micro_batches == room / each);
  }
}

TEST_CASE("where ΔN would help and has no room, memory is what binds") {
  PlanRequest request = FarWithoutDeltaN();
  const PlanResult roomy = MakePlan(request).value();
  int64_t most_bytes = 0;
  for (const PipelineRankPlan& rank : roomy.plan.pipeline_ranks) {
    most_bytes = std::max(most_bytes, rank.peak_bytes);
  }
  request.cluster = test::ThreeRegions(most_bytes);
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 60 * test::kMillisecond;
  }
  const auto [result, explanation] = Explain(request);
  CHECK(explanation.stages[0].limit == StageLimit::kMemory);
  CHECK(explanation.stages[0].room_micro_batches == 0);
  const Remedy* all = Find(explanation, Remedy::Kind::kDeltaN, -1);
  REQUIRE(all != nullptr);
  CHECK(all->stage == 0);
  CHECK(all->lacking_bytes > 0);
}

TEST_CASE("memory is explained with the degrees that the search chose") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.recompute = Recompute::kNone;
  const auto [result, explanation] = Explain(request);
  REQUIRE(result.plan.grid.tensor > 1);
  for (const StageExplanation& stage : explanation.stages) {
    CHECK(stage.largest_memory_bytes <= stage.peak_bytes);
  }
}

}  // namespace
}  // namespace geopipe
