#include "optimizer/plan/choice_costs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "optimizer/plan/planner.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

const ChoiceCost* FindChoice(const ChoiceCosts& costs, std::string_view key, std::string_view instead) {
  const auto found = std::ranges::find_if(
      costs.all, [&](const ChoiceCost& cost) { return cost.key == key && cost.instead == instead; });
  return found == costs.all.end() ? nullptr : &*found;
}

PlanRequest RequestWithAllOpen() {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 0;
  request.job.parallelism.data = 0;
  request.job.placement.sites.clear();
  return request;
}

TEST_CASE("every open choice is made otherwise, and costs what planning the job so costs") {
  if (kSanitized) {
    return;  // two tests below run the same code
  }
  const PlanRequest request = RequestWithAllOpen();
  const PlanResult plan = *MakePlan(request);
  const ChoiceCosts costs = CostsOfChoices(request, plan);
  CHECK(costs.not_tried.empty());
  std::set<std::string> keys;
  for (const ChoiceCost& cost : costs.all) {
    INFO(cost.key << " " << cost.instead);
    keys.insert(cost.key);
    CHECK(cost.taken != cost.instead);
    CHECK(cost.iteration_ns.has_value() == cost.missing.empty());
    if (cost.iteration_ns.has_value()) {
      CHECK(cost.excess ==
            Approx(static_cast<double>(*cost.iteration_ns) / static_cast<double>(plan.prediction.iteration_ns) - 1));
    }
  }
  CHECK(keys.contains("tensor"));
  CHECK(keys.contains("pipeline"));
  CHECK(keys.contains("recompute"));
  CHECK(keys.contains("schedule"));
  CHECK(keys.contains("micro_batch_size"));
  CHECK(keys.contains("sequence_length"));
  CHECK(keys.contains("sites"));
  PlanRequest full = request;
  full.job.parallelism.recompute = Recompute::kFull;
  const ChoiceCost* recompute = FindChoice(costs, "recompute", "full");
  REQUIRE(recompute != nullptr);
  CHECK(recompute->iteration_ns == MakePlan(full)->prediction.iteration_ns);
  CHECK(recompute->excess > 0.1);
  const ChoiceCost* without = FindChoice(costs, "sites", "without west");
  REQUIRE(without != nullptr);
  CHECK(without->excess > 0.3);
  // The three of which one is left out, and the best other order.
  CHECK(std::ranges::count_if(costs.all, [](const ChoiceCost& cost) { return cost.key == "sites"; }) <= 4);
  CHECK(std::ranges::any_of(costs.all, [](const ChoiceCost& cost) {
    return cost.key == "sites" && cost.instead.find(',') != std::string::npos;
  }));
  // A plan of one degree has other degrees, too, and none of these costs more than that.
  for (const ChoiceCost& one : costs.all) {
    for (const ChoiceCost& other : costs.all) {
      if (one.iteration_ns.has_value() && other.key == "tensor" &&
          std::ranges::count(one.with, std::pair<std::string, std::string>("tensor", other.instead)) > 0) {
        CHECK(other.iteration_ns <= one.iteration_ns);
      }
    }
  }
}

TEST_CASE("a choice that the job makes is none, and neither is one without an alternative") {
  PlanRequest request = test::PaperRequest();
  request.job.search.schedule = ScheduleKind::kGeoPipe;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {2048};
  request.job.parallelism.recompute = Recompute::kNone;
  const PlanResult plan = *MakePlan(request);
  REQUIRE(std::ranges::any_of(plan.plan.delta_n, [](int32_t n) { return n > 0; }));
  const ChoiceCosts costs = CostsOfChoices(request, plan);
  REQUIRE(costs.all.size() == 1);
  CHECK(costs.all[0].key == "delta_n");
  CHECK(costs.all[0].instead == "0");
  CHECK(costs.all[0].excess > 0);
  CHECK(costs.all[0].with.empty());
}

TEST_CASE("where nothing fits, the rank that lacks most memory says how much") {
  PlanRequest request = test::PaperRequest();
  request.cluster = test::ThreeRegions(9 * test::kGiB);
  request.job.search.micro_batch_size = {2, 32};
  const PlanResult plan = *MakePlan(request);
  const ChoiceCost* large = nullptr;
  const ChoiceCosts costs = CostsOfChoices(request, plan);
  large = FindChoice(costs, "micro_batch_size", "32");
  REQUIRE(large != nullptr);
  CHECK_FALSE(large->iteration_ns.has_value());
  CHECK(large->missing.starts_with("rank "));
  CHECK(large->missing.ends_with(" GiB too much"));
  CHECK(large->missing.find(" of 9.00 GiB, ") != std::string::npos);
}

TEST_CASE("alternatives are the same whoever runs them, and those that there is no time for are named") {
  PlanRequest request = test::PaperRequest();
  request.job.search.schedule = ScheduleKind::kGeoPipe;
  const PlanResult plan = *MakePlan(request);
  const ChoiceCosts costs = CostsOfChoices(request, plan);
  request.parallel_for = [](int64_t count, const std::function<void(int64_t)>& work) {
    for (int64_t i = count; i-- > 0;) {
      work(i);
    }
  };
  CHECK(CostsOfChoices(request, plan).all == costs.all);
  request.parallel_for = {};
  request.should_stop = [] { return true; };
  const ChoiceCosts none = CostsOfChoices(request, plan);
  CHECK(none.all.empty());
  CHECK(none.not_tried.size() == costs.all.size());
  CHECK(std::ranges::find(none.not_tried, "recompute full") != none.not_tried.end());
}

TEST_CASE("replicas can divide more of their states, or less") {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 4;
  request.job.parallelism.data = 2;
  for (const std::optional<int32_t> asked : {std::optional<int32_t>(1), std::optional<int32_t>()}) {
    request.job.parallelism.zero_stage = asked;
    const PlanResult plan = *MakePlan(request);
    const ChoiceCosts costs = CostsOfChoices(request, plan);
    CHECK(plan.plan.zero_stage == asked.value_or(plan.plan.zero_stage));
    for (const int32_t stage : {0, 1, 2, 3}) {
      const ChoiceCost* cost = FindChoice(costs, "zero_stage", std::to_string(stage));
      REQUIRE((cost == nullptr) == (stage == plan.plan.zero_stage));
      if (cost != nullptr) {
        CHECK(cost->taken == std::to_string(plan.plan.zero_stage));
        CHECK((asked.has_value() || !cost->iteration_ns.has_value() || cost->excess >= 0));
      }
    }
  }
}

}  // namespace
}  // namespace geopipe
