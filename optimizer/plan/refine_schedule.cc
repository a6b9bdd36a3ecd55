#include "optimizer/plan/refine_schedule.h"

#include <absl/status/status.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/plan/schedule_points.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// Timed actions of one refinement, over all b and s: a fraction of a second.
constexpr int64_t kRefinementActions = 12'000'000;
constexpr int64_t kRefinementGapPpm = 200;
// A plan by rule is easier to understand: one that is searched for must be shorter by this.
constexpr int64_t kMinGainPpm = 1'000;
// Several stages on every pipeline rank send every message as often, over every crossing, too.
constexpr int64_t kMinGainOfStagesPpm = 20'000;

int64_t BoundNs(const PipelineCosts& costs) { return MemoryLowerBoundNs(costs).value_or(LowerBoundNs(costs)); }

class Refiner {
 public:
  Refiner(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), best_ns_(iteration_ns) {}

  absl::StatusOr<Refinement> Run(const Plan& plan) {
    GP_RETURN_IF_ERROR(TryLayout(plan, StageLayout::kLinear));
    min_gain_ppm_ = kMinGainOfStagesPpm;
    for (const StageLayout layout : {StageLayout::kFolded, StageLayout::kLooped}) {
      // An error says that there are too few layers, or no link back to the first site.
      if (absl::Status status = TryLayout(plan, layout); !status.ok() && !absl::IsInvalidArgument(status)) {
        return status;
      }
    }
    return std::move(refinement_);
  }

 private:
  absl::Status TryLayout(const Plan& plan, StageLayout layout) {
    const std::array modes{plan.recompute};
    GP_ASSIGN_OR_RETURN(const std::vector<SchedulePoint> points,
                        SchedulePoints(request_, source_, plan, ScheduleKind::kAuto, layout, modes));
    for (const SchedulePoint& point : points) {
      if (point.lower_bound_ns > WorthNs() || actions_left_ == 0 || Stopped()) {
        break;
      }
      GP_RETURN_IF_ERROR(Try(point.plan, point.costs));
    }
    return absl::OkStatus();
  }

  // A schedule must end by then to take the place of the best so far.
  int64_t WorthNs() const { return best_ns_ - best_ns_ / 1'000'000 * min_gain_ppm_; }
  bool Stopped() const { return request_.should_stop && request_.should_stop(); }

  // What messages take in all follows from the schedule, so it is known afterwards only.
  absl::Status Try(Plan plan, PipelineCosts costs) {
    for (int round = 0; round < kMemoryRounds && actions_left_ > 0 && !Stopped(); ++round) {
      if (BoundNs(costs) > WorthNs()) {
        return absl::OkStatus();
      }
      const AutoOptions options{.seed = request_.job.search.seed,
                                .evaluations = EvaluationsWithin(costs, actions_left_),
                                .stop_gap_ppm = kRefinementGapPpm,
                                .stop = request_.should_stop};
      const absl::StatusOr<AutoSchedule> found = FindSchedule(costs, options);
      if (absl::IsFailedPrecondition(found.status())) {
        return absl::OkStatus();
      }
      GP_RETURN_IF_ERROR(found.status());
      refinement_.evaluations += found->evaluations;
      actions_left_ -= std::min(actions_left_, found->evaluations * 3 * costs.shape.stages * costs.shape.micro_batches);
      if (found->iteration_ns > WorthNs()) {
        return absl::OkStatus();
      }
      plan.delta_n = EquivalentDeltaN(found->schedule, costs);
      GP_ASSIGN_OR_RETURN(PipelineCosts exact, CostsOfPlan(request_.job, request_.cluster, source_, plan));
      GP_ASSIGN_OR_RETURN(PlanPrediction prediction,
                          PredictSchedule(request_.job, plan, std::move(exact), found->schedule));
      if (prediction.fits) {
        best_ns_ = prediction.prediction.iteration_ns;
        refinement_.better = {std::move(plan), std::move(prediction)};
        return absl::OkStatus();
      }
      for (size_t rank = 0; rank < plan.pipeline_ranks.size(); ++rank) {
        const int64_t capacity_bytes = plan.pipeline_ranks[rank].capacity_bytes;
        const int64_t excess_bytes = prediction.peak_bytes[rank] - capacity_bytes;
        if (excess_bytes > 0) {
          costs.memory->static_bytes[rank] += std::max(excess_bytes, capacity_bytes / 256) << round;
        }
      }
    }
    return absl::OkStatus();
  }

  const PlanRequest& request_;
  const CostSource& source_;
  int64_t best_ns_ = 0;
  int64_t min_gain_ppm_ = kMinGainPpm;
  int64_t actions_left_ = kRefinementActions;
  Refinement refinement_;
};

}  // namespace

std::vector<int32_t> EquivalentDeltaN(const Schedule& schedule, const PipelineCosts& costs) {
  if (schedule.shape.stages != schedule.shape.devices) {
    return std::vector<int32_t>(std::ranges::count(costs.boundaries, true, &BoundaryCost::crosses), 0);
  }
  const std::vector<int64_t> in_flight = InFlightOfSchedule(schedule);
  std::vector<int32_t> delta_n;
  int64_t advance = 0;
  for (int32_t stage = schedule.shape.stages - 2; stage >= 0; --stage) {
    if (costs.boundaries[stage].crosses) {
      const int64_t here = std::max<int64_t>(0, in_flight[stage] - (schedule.shape.stages - stage) - advance);
      advance += here;
      delta_n.push_back(static_cast<int32_t>(here));
    }
  }
  std::reverse(delta_n.begin(), delta_n.end());
  return delta_n;
}

void TakePlan(Refinement found, PlanResult& result) {
  result.plan = std::move(found.better->plan);
  PlanPrediction& predicted = found.better->prediction;
  for (size_t rank = 0; rank < predicted.peak_bytes.size(); ++rank) {  // none where costs are given without memory
    result.plan.pipeline_ranks[rank].peak_bytes = predicted.peak_bytes[rank];
  }
  result.prediction = predicted.prediction;
  result.costs = std::move(predicted.costs);
  result.schedule = std::move(predicted.schedule);
  result.search.evaluations += found.evaluations;
  result.search.stopped_early |= found.stopped_early;
  std::ranges::move(found.rejected, std::back_inserter(result.search.rejected));
}

absl::StatusOr<Refinement> RefineSchedule(const PlanRequest& request, const CostSource& source, const Plan& plan,
                                          int64_t iteration_ns) {
  if (!request.refine || request.job.search.schedule != ScheduleKind::kAuto || request.comm != CommMode::kNonBlocking ||
      !request.fixed_delta_n.empty()) {
    return Refinement{};
  }
  return Refiner(request, source, iteration_ns).Run(plan);
}

}  // namespace geopipe
