#include "optimizer/plan/frugal_plan.h"

#include <catch2/catch.hpp>

#include "tests/optimizer/plan/jobs.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

PlanRequest SmallRequest() {
  PlanRequest request = test::PaperRequest();
  request.refine = true;
  request.baselines = false;
  request.cluster_bound = false;
  request.job.search.schedule = ScheduleKind::kAuto;
  request.job.search.micro_batch_size = {2};
  request.job.search.sequence_length = {2048};
  request.job.training.tokens_per_iteration = 1 << 18;
  request.job.parallelism.recompute = Recompute::kNone;
  request.job.parallelism.layers = LayerSplit::kAuto;
  request.cluster.links.push_back({"north", "west", 7 * test::kMillisecond, 50e9});
  return request;
}

TEST_CASE("a plan that takes least memory is nearly as fast, fits, and is said beside the fastest") {
  PlanRequest request = SmallRequest();
  request.weigh_memory = true;
  const PlanResult fast = MakePlan(request).value();
  REQUIRE(fast.traded.has_value());
  CHECK(fast.traded->iteration_ns >= fast.prediction.iteration_ns);
  CHECK(fast.traded->iteration_ns <= fast.prediction.iteration_ns / 100 * 103);
  CHECK(fast.traded->fullest_device_bytes <= FullestDeviceBytes(fast.plan) / 2);

  request.job.search.prefer = Prefer::kMemory;
  int64_t best_ns = 0;
  request.progress = [&](int64_t, int64_t so_far_ns) { best_ns = so_far_ns; };
  const PlanResult frugal = MakePlan(request).value();
  CHECK(best_ns == fast.prediction.iteration_ns);
  REQUIRE(frugal.traded.has_value());
  CHECK(frugal.prediction.iteration_ns == fast.traded->iteration_ns);
  CHECK(FullestDeviceBytes(frugal.plan) == fast.traded->fullest_device_bytes);
  CHECK(*frugal.traded == TimeAndMemory{fast.prediction.iteration_ns, FullestDeviceBytes(fast.plan)});
  for (const PipelineRankPlan& rank : frugal.plan.pipeline_ranks) {
    CHECK(rank.peak_bytes <= rank.capacity_bytes);
    CHECK(rank.capacity_bytes == request.cluster.sites.front().device.usable_bytes());
  }
}

TEST_CASE("a plan that takes least memory keeps the degrees that the planner chose") {
  if (kSanitized) {
    return;  // the test above has run the same code
  }
  PlanRequest request = SmallRequest();
  request.job.parallelism.data = 0;
  request.job.parallelism.tensor = 4;
  request.job.parallelism.pipeline = 3;
  for (SiteSpec& site : request.cluster.sites) {
    site.nodes = 1;
  }
  request.job.search.prefer = Prefer::kMemory;
  const absl::StatusOr<PlanResult> frugal = MakePlan(request);
  INFO(frugal.status().ToString());
  REQUIRE(frugal.ok());
  REQUIRE(frugal->traded.has_value());
  CHECK(frugal->plan.grid.data == 2);
}

TEST_CASE("what takes little memory anyway, or was not asked about, has nothing beside it") {
  CHECK_FALSE(MakePlan(SmallRequest())->traded.has_value());
  PlanRequest tight = SmallRequest();
  tight.weigh_memory = true;
  tight.job.search.schedule = ScheduleKind::kOneFOneB;
  for (SiteSpec& site : tight.cluster.sites) {
    site.device.memory_bytes = 12 * test::kGiB;
  }
  const absl::StatusOr<PlanResult> planned = MakePlan(tight);
  INFO(planned.status().ToString());
  REQUIRE(planned.ok());
  CHECK(
      (!planned->traded.has_value() || planned->traded->fullest_device_bytes <= FullestDeviceBytes(planned->plan) / 2));
}

}  // namespace
}  // namespace geopipe
