#include "optimizer/plan/bound/cluster_bound.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

// The request with everything that the job leaves open fixed by chance.
PlanRequest Pinned(PlanRequest request, Prng& prng) {
  ParallelismSpec& parallelism = request.job.parallelism;
  if (parallelism.tensor == 0) {
    parallelism.tensor = prng.Between(1, 2);
  }
  if (parallelism.data == 0) {
    parallelism.data = prng.Between(1, 4);
  }
  if (parallelism.pipeline == 0 && prng.Chance(1, 2)) {
    parallelism.pipeline = prng.Between(1, 6);
  }
  if (!parallelism.recompute.has_value()) {
    parallelism.recompute = test::OneOf(prng, {Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  }
  if (!parallelism.zero_stage.has_value()) {
    parallelism.zero_stage = static_cast<int32_t>(prng.Between(0, 3));
  }
  if (request.job.search.schedule == ScheduleKind::kAuto && prng.Chance(1, 2)) {
    request.job.search.schedule = kSchedules[prng.Below(kSchedules.size())].kind;
  }
  const ScheduleKind kind = request.job.search.schedule;
  if ((kind == ScheduleKind::kAuto && request.refine) || kind == ScheduleKind::kInterleaved) {
    parallelism.stages_per_rank = prng.Chance(1, 2) ? prng.Between(2, 5) : 0;
  }
  return request;
}

TEST_CASE("no plan of a random job on a random cluster beats the cluster's bound, whatever is left open or fixed") {
  const uint64_t seed = TestSeed(1);
  int plans = 0;
  // The last: a rank that takes all that it may leaves too little for one that has the head.
  for (uint64_t i = 0; i <= 50; i += kSanitized ? 5 : 1) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    Prng prng(i == 50 ? 6 * 1'000'003 + 40 : seed * 1'000'003 + i);
    PlanRequest request = test::RandomClusterRequest(prng, i % 8 == 0 || i == 50 ? 6 : 4);
    request.cluster_bound = false;
    const absl::StatusOr<PlanResult> plan = MakePlan(request);
    if (!plan.ok()) {
      continue;
    }
    const CostSource source(request.job, request.cluster, nullptr);
    // The limit lies beyond any plan, so that it is not the limit that is compared.
    const int64_t bound_ns = ClusterBoundNs(request, source, 8 * plan->prediction.iteration_ns);
    REQUIRE(bound_ns > 0);
    REQUIRE(bound_ns <= plan->prediction.iteration_ns);
    REQUIRE(ClusterBoundNs(request, source, plan->prediction.iteration_ns) <= plan->prediction.iteration_ns);
    ++plans;
    for (int other = 0; other < 3; ++other) {
      const PlanRequest pinned = Pinned(request, prng);
      const absl::StatusOr<PlanResult> of_pinned = MakePlan(pinned);
      if (of_pinned.ok()) {
        REQUIRE(bound_ns <= of_pinned->prediction.iteration_ns);
        ++plans;
      }
    }
  }
  REQUIRE(plans > (kSanitized ? 10 : 50));
}

TEST_CASE("a star of sites bounds a plan by the three that a pipeline can pass") {
  PlanRequest request;
  request.cluster_bound = false;
  request.job.name = "star";
  request.job.model = {.hidden_size = 1024,
                       .intermediate_size = 3072,
                       .num_hidden_layers = 12,
                       .num_attention_heads = 16,
                       .num_key_value_heads = 8,
                       .vocab_size = 8000,
                       .max_position_embeddings = 4096};
  request.job.training.iterations = 1;
  request.job.training.tokens_per_iteration = 512 * 64;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {512};
  const DeviceSpec device{
      .kind = "device", .memory_bytes = int64_t{64} << 30, .peak_flops = 1e14, .memory_bandwidth_bytes_per_s = 1e12};
  for (int i = 0; i < 6; ++i) {
    request.cluster.sites.push_back({"site" + std::to_string(i), 1, 1, device});
    if (i > 0) {
      request.cluster.links.push_back({"site0", "site" + std::to_string(i), 1'000, 1e11});
    }
  }
  const CostSource source(request.job, request.cluster, nullptr);
  const absl::StatusOr<PlanResult> plan = MakePlan(request);
  REQUIRE(plan.ok());
  CHECK(plan->plan.grid.pipeline == 3);
  const int64_t bound_ns = ClusterBoundNs(request, source, 8 * plan->prediction.iteration_ns);
  CHECK(bound_ns <= plan->prediction.iteration_ns);
  CHECK(static_cast<double>(bound_ns) > 0.85 * static_cast<double>(plan->prediction.iteration_ns));
}

}  // namespace
}  // namespace geopipe
