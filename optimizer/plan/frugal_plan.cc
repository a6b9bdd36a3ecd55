#include "optimizer/plan/frugal_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/refine/grid_search.h"
#include "optimizer/plan/refine/retime.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {
namespace {

constexpr int kMaxHalvings = 6;

// `request` at the sites and degrees of `plan`, within so much of each device.
PlanRequest Within(const PlanRequest& request, const Plan& plan, int64_t bytes) {
  PlanRequest within = request;
  const Shape shape = ShapeOfPlan(plan);
  within.job = JobOf(request.job, shape);
  within.job.search.prefer = Prefer::kSpeed;
  within.site_ranks = shape.ranks;
  within.refine_fully = false;
  within.baselines = false;
  within.cluster_bound = false;
  within.weigh_memory = false;
  within.progress = {};  // its best is no faster
  for (SiteSpec& site : within.cluster.sites) {
    site.device.memory_bytes = std::min(site.device.memory_bytes, bytes + site.device.reserve_bytes.value_or(0));
  }
  return within;
}

}  // namespace

int64_t FullestDeviceBytes(const Plan& plan) {
  return std::ranges::max_element(plan.pipeline_ranks, {}, &PipelineRankPlan::peak_bytes)->peak_bytes;
}

absl::StatusOr<Refinement> FindFrugalPlan(const PlanRequest& request, const CostSource& source,
                                          const PlanResult& result) {
  Refinement frugal;
  if (!request.refine || request.method == SearchMethod::kExhaustive) {
    return frugal;
  }
  const int64_t iteration_ns = result.prediction.iteration_ns;
  int64_t bytes = FullestDeviceBytes(result.plan);
  for (int halving = 0; halving < kMaxHalvings; ++halving) {
    bytes /= 2;
    absl::StatusOr<PlanResult> within = MakePlan(Within(request, result.plan, bytes));
    if (!within.ok()) {
      break;  // nothing fits
    }
    frugal.evaluations += within->search.evaluations;
    frugal.stopped_early |= within->search.stopped_early;
    if (within->prediction.iteration_ns > iteration_ns + iteration_ns / 1'000'000 * kFrugalPpm) {
      break;
    }
    GP_ASSIGN_OR_RETURN(RefinedPlan timed, Retime(request, source, std::move(within->plan), within->schedule));
    for (size_t rank = 0; rank < timed.prediction.peak_bytes.size(); ++rank) {
      timed.plan.pipeline_ranks[rank].peak_bytes = timed.prediction.peak_bytes[rank];
    }
    bytes = FullestDeviceBytes(timed.plan);
    frugal.better = std::move(timed);
  }
  return frugal;
}

}  // namespace geopipe
