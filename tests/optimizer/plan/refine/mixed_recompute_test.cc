#include "optimizer/plan/refine/mixed_recompute.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <string>

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
  return request;
}

TEST_CASE("where memory binds ranks recompute differently, and that takes less than any mode for all") {
  PlanRequest request = ScarceRequest(6 * test::kGiB);
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
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kZbH1, ScheduleKind::kZbH2}) {
    PlanRequest request = ScarceRequest(8 * test::kGiB);
    request.job.search.schedule = kind;
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

}  // namespace
}  // namespace geopipe
