#include "optimizer/plan/refine/schedule_points.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "optimizer/plan/space/placement.h"
#include "optimizer/search/prng.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

PlanRequest ReplicatedRequest(Prng& prng) {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 4;
  request.job.parallelism.data = 2;
  request.job.parallelism.layers = LayerSplit::kAuto;
  for (SiteSpec& site : request.cluster.sites) {
    site.device.memory_bytes = test::kGiB * prng.Between(8, 64);
    site.device.intra_node_bandwidth_bytes_per_s = 1e9 * static_cast<double>(prng.Between(1, 300));
  }
  request.cluster.links.push_back({"west", "north", test::kMillisecond, 50e9});
  return request;
}

Plan PlacementOf(const PlanRequest& request) {
  Plan plan = *PlaceStages(request.job, request.cluster, request.job.placement.sites);
  plan.delta_n.assign(plan.Crossings().size(), 0);
  return plan;
}

std::vector<SchedulePoint> PointsOf(const PlanRequest& request, const StageChoice& stages, LinearLayers linear) {
  const CostSource source(request.job, request.cluster, nullptr);
  return *SchedulePoints(request, source, PlacementOf(request), ScheduleKind::kAuto, stages, WorkChoices(request.job),
                         linear);
}

TEST_CASE("of ZeRO stages none is left out that another does not match") {
  const uint64_t seed = TestSeed(1);
  int left_out = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    INFO("GEOPIPE_TEST_SEED=" << seed << ", case " << i);
    Prng prng(seed * 1'000'003 + i);
    PlanRequest request = ReplicatedRequest(prng);
    const StageChoice stages = i % 3 == 0   ? StageChoice{}
                               : i % 3 == 1 ? StageChoice{StageLayout::kFolded, 2}
                                            : StageChoice{StageLayout::kLooped, 3};
    const std::vector<SchedulePoint> open = PointsOf(request, stages, LinearLayers::kBalanced);
    CHECK(std::ranges::is_sorted(open, {}, &SchedulePoint::lower_bound_ns));
    for (const int32_t zero_stage : {0, 1, 2, 3}) {
      request.job.parallelism.zero_stage = zero_stage;
      for (const SchedulePoint& fixed : PointsOf(request, stages, LinearLayers::kBalanced)) {
        CHECK(fixed.plan.zero_stage == zero_stage);
        const auto is_it = [&](const SchedulePoint& point) { return point.plan == fixed.plan; };
        const auto matches = [&](const SchedulePoint& point) {
          Plan plan = point.plan;
          plan.zero_stage = zero_stage;
          return plan == fixed.plan && point.lower_bound_ns <= fixed.lower_bound_ns;
        };
        left_out += std::ranges::any_of(open, is_it) ? 0 : 1;
        CHECK((std::ranges::any_of(open, is_it) || std::ranges::any_of(open, matches)));
      }
    }
  }
  CHECK(left_out > 0);
}

TEST_CASE("work that takes longer than what is worth it bounds every schedule with it") {
  Prng prng(TestSeed(1));
  const PlanRequest request = ReplicatedRequest(prng);
  const CostSource source(request.job, request.cluster, nullptr);
  const std::vector<SchedulePoint> all = PointsOf(request, {}, LinearLayers::kOwn);
  const int64_t worth_ns = all[all.size() / 2].lower_bound_ns;
  const std::vector<WorkChoice> within = *WorkWithin(request, source, PlacementOf(request), worth_ns);
  CHECK(within.size() < WorkChoices(request.job).size());
  for (const SchedulePoint& point : all) {
    const WorkChoice work{
        {*point.plan.SameRecompute(), point.plan.zero_stage}, point.plan.micro_batch_size, point.plan.sequence_length};
    CHECK((point.lower_bound_ns > worth_ns || std::ranges::find(within, work) != within.end()));
  }
}

TEST_CASE("balanced layers are tried beside a plan's own, where they are others") {
  Prng prng(TestSeed(1));
  PlanRequest request = ReplicatedRequest(prng);
  request.cluster.sites[0].device.peak_flops *= 2;
  const Plan own = PlacementOf(request);
  for (const SchedulePoint& point : PointsOf(request, {}, LinearLayers::kOwn)) {
    CHECK(point.plan.stages == own.stages);
  }
  const std::vector<SchedulePoint> balanced = PointsOf(request, {}, LinearLayers::kBalanced);
  REQUIRE(!balanced.empty());
  for (const SchedulePoint& point : balanced) {
    CHECK(point.plan.stages != own.stages);
    CHECK(point.plan.stages[0].layers.count() > point.plan.stages[4].layers.count());
  }
}

}  // namespace
}  // namespace geopipe
