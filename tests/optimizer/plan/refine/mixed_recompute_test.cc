#include "optimizer/plan/refine/mixed_recompute.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>

#include "optimizer/model/cost_source.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/refine/retime.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/simulator.h"
#include "runtime/base/thread_pool.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// Devices with little memory: without recomputation fewer micro-batches are in flight than a schedule wants.
PlanRequest ScarceRequest(int64_t memory_bytes) {
  PlanRequest request = test::PaperRequest();
  request.refine = true;
  request.refine_fully = false;
  request.baselines = false;
  request.job.parallelism.layers = LayerSplit::kAuto;
  request.job.training.tokens_per_iteration = 1 << 19;
  request.cluster = test::ThreeRegions(memory_bytes);
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  return request;
}

TEST_CASE("where memory binds ranks recompute differently, and that takes less than any mode for all") {
  PlanRequest request = ScarceRequest(52 * test::kGiB / 10);
  const PlanResult mixed = MakePlan(request).value();
  INFO(RecomputeText(mixed.plan));
  CHECK(!mixed.plan.SameRecompute().has_value());
  CHECK(Validate(mixed.schedule).ok());
  const SimulationResult simulated = Simulate(mixed.schedule, mixed.costs).value();
  CHECK(simulated.iteration_ns == mixed.prediction.iteration_ns);
  CHECK(mixed.prediction.lower_bound_ns <= mixed.prediction.iteration_ns);
  CHECK(mixed.cluster_bound_ns <= mixed.prediction.iteration_ns);
  for (size_t rank = 0; rank < mixed.plan.pipeline_ranks.size(); ++rank) {
    CHECK(simulated.peak_bytes[rank] == mixed.plan.pipeline_ranks[rank].peak_bytes);
    CHECK(simulated.peak_bytes[rank] <= mixed.plan.pipeline_ranks[rank].capacity_bytes);
  }
  ThreadPool pool(2);
  request.parallel_for = [&pool](int64_t count, const std::function<void(int64_t)>& work) { pool.For(count, work); };
  CHECK(MakePlan(request)->plan == mixed.plan);
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    request.job.parallelism.recompute = mode;
    const PlanResult same = MakePlan(request).value();
    CHECK(same.plan.SameRecompute() == mode);
    CHECK(same.prediction.iteration_ns > mixed.prediction.iteration_ns + mixed.prediction.iteration_ns / 1'000);
  }
}

TEST_CASE("with enough memory all ranks recompute nothing") {
  CHECK(MakePlan(ScarceRequest(64 * test::kGiB))->plan.SameRecompute() == Recompute::kNone);
}

TEST_CASE("kinds of schedule that the job names are mixed too") {
  // Tenths of a GiB, in which some ranks have room for more than others.
  for (const auto& [kind, tenths] : {std::pair(ScheduleKind::kOneFOneB, 44), std::pair(ScheduleKind::kZbH1, 46),
                                     std::pair(ScheduleKind::kZbH2, 47)}) {
    PlanRequest request = ScarceRequest(tenths * test::kGiB / 10);
    request.job.search.schedule = kind;
    INFO(ScheduleKindName(kind));
    const PlanResult open = MakePlan(request).value();
    CHECK(open.plan.schedule == kind);
    CHECK(!open.plan.SameRecompute().has_value());
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective}) {
      request.job.parallelism.recompute = mode;
      const auto fixed = MakePlan(request);
      CHECK((!fixed.ok() || fixed->prediction.iteration_ns > open.prediction.iteration_ns));
    }
  }
}

TEST_CASE("no rank alone could recompute in another way, with the same layers and schedule, for a shorter iteration") {
  for (const int64_t tenths : {44, 46, 48, 50}) {  // of a GiB
    PlanRequest request = ScarceRequest(tenths * test::kGiB / 10);
    request.job.search.schedule = ScheduleKind::kGeoPipe;
    const PlanResult planned = MakePlan(request).value();
    const CostSource source(request.job, request.cluster, nullptr);
    const int64_t iteration_ns = planned.prediction.iteration_ns;
    for (size_t rank = 0; rank < planned.plan.pipeline_ranks.size(); ++rank) {
      for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        Plan plan = planned.plan;
        plan.pipeline_ranks[rank].recompute = mode;
        const RefinedPlan changed = Retime(request, source, plan, planned.schedule).value();
        INFO(tenths << ", rank " << rank << ", " << RecomputeText(planned.plan) << "; " << RecomputeText(plan));
        CHECK((!changed.prediction.fits ||
               changed.prediction.prediction.iteration_ns > iteration_ns - iteration_ns / 1'000));
      }
    }
  }
}

// Llama-2 70B on two sites of 8 nodes, whose devices have 56 GB.
PlanRequest ScarceClusterRequest() {
  PlanRequest request = ScarceRequest(56'000'000'000);
  request.job.model = ModelPreset("llama-2-70b").value();
  request.job.training.tokens_per_iteration = 1 << 21;
  request.job.parallelism.zero_stage = 1;
  request.job.search.micro_batch_size = {1};
  request.job.search.sequence_length = {4096};
  request.job.placement.sites = {"north", "west"};
  SiteSpec site = request.cluster.sites.front();
  site.nodes = 8;
  site.device.peak_flops = 989e12;
  site.device.efficiency = 0.6;
  site.device.memory_bandwidth_bytes_per_s = 3.35e12;
  site.device.intra_node_bandwidth_bytes_per_s = 450e9;
  site.network = {.bandwidth_bytes_per_s = 50e9, .latency_ns = 5'000};
  request.cluster.sites = {site, site};
  request.cluster.sites.back().name = "west";
  request.cluster.links = {{"north", "west", 15 * test::kMillisecond, 12.5e9}};
  return request;
}

TEST_CASE("degrees that only a mix makes the fastest are found") {
  PlanRequest request = ScarceClusterRequest();
  const auto planned = [&](int32_t tensor, int32_t pipeline, int32_t data) {
    request.job.parallelism.tensor = tensor;
    request.job.parallelism.pipeline = pipeline;
    request.job.parallelism.data = data;
    return MakePlan(request).value();
  };
  const PlanResult open = planned(0, 0, 0);
  const ProcessGrid& grid = open.plan.grid;
  INFO(grid.tensor << " " << grid.pipeline << " " << grid.data << ", " << RecomputeText(open.plan));
  CHECK(!open.plan.SameRecompute().has_value());
  // The former are the fastest with the same mode on all ranks, as far as these are searched; the latter with a mix.
  const int64_t wide_ns = planned(4, 4, 8).prediction.iteration_ns;
  const int64_t narrow_ns = planned(2, 16, 4).prediction.iteration_ns;
  CHECK(narrow_ns + narrow_ns / 100 < wide_ns);
  CHECK(open.prediction.iteration_ns <= narrow_ns);
  CHECK(planned(grid.tensor, grid.pipeline, grid.data).plan == open.plan);
}

}  // namespace
}  // namespace geopipe
