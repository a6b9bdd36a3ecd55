// Small problems are planned exactly.
#include "optimizer/plan/refine/grid_search.h"

#include <catch2/catch.hpp>
#include <limits>

#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/planner.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/exhaustive_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr int64_t kAnyNs = std::numeric_limits<int64_t>::max();

// A cluster of exhaustive_bench.
PlanRequest OpenRequest(uint64_t seed, uint64_t index) {
  Prng prng(seed * 1'000'003 + index);
  PlanRequest request = test::RandomOpenRequest(prng);
  request.baselines = false;
  return request;
}

TEST_CASE("the plan of a small job on a random cluster is within one percent of the best of all") {
  const uint64_t seed = TestSeed(1);
  int planned = 0;
  int optimal = 0;
  constexpr uint64_t kEnd = kSanitized ? 29 : 33;
  for (uint64_t index = 27; index < kEnd; ++index) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", cluster " << index);
    const PlanRequest request = OpenRequest(seed, index);
    const absl::StatusOr<PlanResult> plan = MakePlan(request);
    const test::ExhaustiveResult best = test::FindExhaustively(request, {});
    REQUIRE(best.complete);
    REQUIRE(plan.ok() == best.found);
    if (!plan.ok()) {
      continue;
    }
    ++planned;
    const int64_t plan_ns = plan->prediction.iteration_ns;
    CHECK(plan_ns <= best.iteration_ns + best.iteration_ns / 100);
    CHECK(best.iteration_ns <= plan_ns + plan_ns / 1'000);
    CHECK(plan->cluster_bound_ns <= best.iteration_ns);
    CHECK(plan->prediction.lower_bound_ns <= plan_ns);
    optimal += plan_ns <= best.iteration_ns + best.iteration_ns / 1'000 ? 1 : 0;
  }
  CHECK((planned >= 4 || kSanitized));
  CHECK(optimal >= planned - 1);
}

// Two sites, the first of which computes at a quarter of the second's speed.
PlanRequest UnequalRequest() {
  const DeviceSpec slow{.kind = "slow",
                        .memory_bytes = 16 * test::kGiB,
                        .peak_flops = 25e12,
                        .memory_bandwidth_bytes_per_s = 1e12,
                        .intra_node_bandwidth_bytes_per_s = 1e11,
                        .efficiency = 0.5};
  DeviceSpec fast = slow;
  fast.kind = "fast";
  fast.memory_bytes = 3 * test::kGiB;
  fast.peak_flops = 100e12;
  PlanRequest request;
  request.cluster.sites = {{"slow", 1, 4, slow}, {"fast", 1, 4, fast}};
  request.cluster.links = {{"slow", "fast", test::kMillisecond / 10, 10e9}};
  JobSpec& job = request.job;
  job.name = "unequal";
  job.model = {.hidden_size = 2048,
               .intermediate_size = 5632,
               .num_hidden_layers = 8,
               .num_attention_heads = 16,
               .num_key_value_heads = 16,
               .vocab_size = 8000,
               .max_position_embeddings = 4096};
  job.training.iterations = 1;
  job.training.tokens_per_iteration = 1024 * 32;
  job.precision = Precision::kBf16;
  job.parallelism.pipeline = 5;
  job.search.micro_batch_size = {1};
  job.search.sequence_length = {1024};
  job.search.schedule = ScheduleKind::kOneFOneB;
  job.placement.sites = {"slow", "fast"};
  request.baselines = false;
  return request;
}

TEST_CASE("pipeline ranks go where they are fast, not in proportion to the devices of the sites") {
  PlanRequest request = UnequalRequest();
  const absl::StatusOr<PlanResult> plan = MakePlan(request);
  REQUIRE(plan.status().ToString() == "OK");
  CHECK(ShapeOfPlan(plan->plan).ranks == std::vector<int64_t>{1, 4});
  request.refine = false;  // without a look at every grid
  const PlanResult by_speed = MakePlan(request).value();
  CHECK(ShapeOfPlan(by_speed.plan).ranks == std::vector<int64_t>{1, 4});
  CHECK(plan->prediction.iteration_ns <= by_speed.prediction.iteration_ns);
  request.refine = true;
  CHECK(MakePlan(request)->plan == plan->plan);
}

TEST_CASE("a kind that genomes do not search is planned at the grid where it is the fastest itself") {
  // The search by genome would take the grid where zb-v's stand-in is the fastest.
  int planned = 0;
  for (uint64_t index = 0; planned < 3; ++index) {
    const PlanRequest request = OpenRequest(1, index);
    const bool is_wanted = request.job.search.schedule == ScheduleKind::kZbV;
    const absl::StatusOr<PlanResult> plan = is_wanted ? MakePlan(request) : absl::StatusOr<PlanResult>();
    if (!plan.ok()) {
      continue;
    }
    INFO("cluster " << index);
    ++planned;
    const test::ExhaustiveResult best = test::FindExhaustively(request, {});
    CHECK(plan->plan.schedule == ScheduleKind::kZbV);
    CHECK(plan->prediction.iteration_ns <= best.iteration_ns + best.iteration_ns / 1'000);
    CHECK(plan->search.best_so_far_ns.back() == plan->prediction.iteration_ns);
  }
}

TEST_CASE("grids are not searched where there are many, or the request rules it out") {
  PlanRequest large = test::PaperRequest();
  large.refine = true;
  const auto found = [](const PlanRequest& request) {
    const CostSource source(request.job, request.cluster, nullptr);
    return SearchGrids(request, source, kAnyNs)->better.has_value();
  };
  CHECK_FALSE(found(large));
  PlanRequest small = UnequalRequest();
  CHECK(found(small));
  small.should_stop = [] { return true; };
  CHECK_FALSE(found(small));
  small.should_stop = {};
  small.method = SearchMethod::kExhaustive;
  CHECK_FALSE(found(small));
  small.method = SearchMethod::kGenetic;
  small.comm = CommMode::kBlocking;
  CHECK_FALSE(found(small));
  small.comm = CommMode::kNonBlocking;
  small.refine = false;
  CHECK_FALSE(found(small));
}

}  // namespace
}  // namespace geopipe
