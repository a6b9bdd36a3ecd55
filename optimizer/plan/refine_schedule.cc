#include "optimizer/plan/refine_schedule.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// Timed actions of one refinement, over all b and s: a fraction of a second.
constexpr int64_t kRefinementActions = 12'000'000;
constexpr int64_t kRefinementGapPpm = 200;
// A plan by rule is easier to understand: one made to measure must be shorter by this.
constexpr int64_t kLeastGainPpm = 1'000;
// How often a schedule is made again with less memory, because the last one's messages took more than was foreseen.
constexpr int kMemoryRounds = 8;

int64_t WorthNs(int64_t iteration_ns) { return iteration_ns - iteration_ns / 1'000'000 * kLeastGainPpm; }

struct RefinementPoint {
  Plan plan;
  PipelineCosts costs;
  int64_t lower_bound_ns = 0;
};

int64_t BoundNs(const PipelineCosts& costs) { return MemoryLowerBoundNs(costs).value_or(LowerBoundNs(costs)); }

// The more micro-batches a schedule has in flight, the more messages it holds (StageNeeds::BoundaryMessages). Costs of
// a plan count those of its own kind and ΔN once and for all; a schedule still to be made pays for each with its
// micro-batch. Where it has as many in flight as the plan, both are the same.
void CountMessagesInFlight(const JobSpec& job, const Plan& plan, MemoryCosts& memory) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOfPlan(plan), plan.comm);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    const int64_t bytes = needs[stage].MoreMessageBytes(flows[stage]);
    memory.activation_bytes[stage] += bytes;
    memory.static_bytes[stage] = std::max<int64_t>(0, memory.static_bytes[stage] - bytes * flows[stage].here);
  }
}

// Every b and s that makes up the tokens, by lower bound; equals in the job's order.
absl::StatusOr<std::vector<RefinementPoint>> PointsOf(const PlanRequest& request, const CostSource& source,
                                                      const Plan& plan) {
  const JobSpec& job = request.job;
  std::vector<RefinementPoint> points;
  for (const int64_t micro_batch_size : job.search.micro_batch_size) {
    for (const int64_t sequence_length : job.search.sequence_length) {
      Plan at = plan;
      at.micro_batches = MicroBatchesOf(job, micro_batch_size, sequence_length);
      if (at.micro_batches == 0) {
        continue;
      }
      at.schedule = ScheduleKind::kAuto;
      at.micro_batch_size = micro_batch_size;
      at.sequence_length = sequence_length;
      GP_ASSIGN_OR_RETURN(PipelineCosts costs, CostsOfPlan(job, request.cluster, source, at));
      CountMessagesInFlight(job, at, *costs.memory);
      const int64_t lower_bound_ns = BoundNs(costs);
      points.push_back({std::move(at), std::move(costs), lower_bound_ns});
    }
  }
  std::stable_sort(points.begin(), points.end(), [](const RefinementPoint& a, const RefinementPoint& b) {
    return a.lower_bound_ns < b.lower_bound_ns;
  });
  return points;
}

class Refiner {
 public:
  Refiner(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), best_ns_(iteration_ns) {}

  absl::StatusOr<Refinement> Run(const Plan& plan) {
    GP_ASSIGN_OR_RETURN(const std::vector<RefinementPoint> points, PointsOf(request_, source_, plan));
    for (const RefinementPoint& point : points) {
      if (point.lower_bound_ns > WorthNs(best_ns_) || actions_left_ == 0 || Stopped()) {
        break;
      }
      GP_RETURN_IF_ERROR(Try(point.plan, point.costs));
    }
    return std::move(refinement_);
  }

 private:
  bool Stopped() const { return request_.should_stop && request_.should_stop(); }

  // What messages take in all follows from the schedule, so it is known afterwards only.
  absl::Status Try(Plan plan, PipelineCosts costs) {
    for (int round = 0; round < kMemoryRounds && actions_left_ > 0 && !Stopped(); ++round) {
      if (BoundNs(costs) > WorthNs(best_ns_)) {
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
      actions_left_ -= std::min(actions_left_, found->evaluations * 3 * costs.shape.chunks * costs.shape.micro_batches);
      if (found->iteration_ns > WorthNs(best_ns_)) {
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
      for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
        const int64_t excess_bytes = prediction.peak_bytes[stage] - plan.pipeline_ranks[stage].capacity_bytes;
        if (excess_bytes > 0) {
          costs.memory->static_bytes[stage] += std::max(excess_bytes, plan.pipeline_ranks[stage].capacity_bytes / 256)
                                               << round;
        }
      }
    }
    return absl::OkStatus();
  }

  const PlanRequest& request_;
  const CostSource& source_;
  int64_t best_ns_ = 0;
  int64_t actions_left_ = kRefinementActions;
  Refinement refinement_;
};

}  // namespace

std::vector<int32_t> EquivalentDeltaN(const Schedule& schedule, const PipelineCosts& costs) {
  const auto stages = static_cast<int32_t>(schedule.devices.size());
  std::vector<int32_t> delta_n;
  int32_t advance = 0;
  for (int32_t stage = stages - 2; stage >= 0; --stage) {
    if (!costs.boundaries[static_cast<size_t>(stage)].crosses) {
      continue;
    }
    int32_t in_flight = 0;
    int32_t most = 0;
    for (const Action& action : schedule.devices[static_cast<size_t>(stage)]) {
      in_flight += action.kind == ActionKind::kForward ? 1 : 0;
      in_flight -= action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kBackward ? 1 : 0;
      most = std::max(most, in_flight);
    }
    const int32_t here = std::max(0, most - (stages - stage) - advance);
    advance += here;
    delta_n.push_back(here);
  }
  std::reverse(delta_n.begin(), delta_n.end());
  return delta_n;
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
