#include "optimizer/plan/refine/schedule_points.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// Counts messages by the micro-batch. The more micro-batches a schedule has in flight, the more messages it holds
// (StageNeeds::BoundaryMessages). Costs of a plan count those of its own kind and ΔN once and for all; a schedule still
// to be made pays for each with its micro-batch. If it has as many in flight as the plan, both are the same.
void CountMessagesInFlight(const JobSpec& job, const Plan& plan, MemoryCosts& memory) {
  const std::vector<StageNeeds> needs = NeedsOfPlan(job, plan);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOfPlan(plan), plan.comm);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    const int64_t bytes = needs[stage].MoreMessageBytes(flows[stage]);
    memory.activation_bytes[stage] += bytes;
    int64_t& static_bytes = memory.static_bytes[plan.stages[stage].pipeline_rank];
    static_bytes = std::max<int64_t>(0, static_bytes - bytes * flows[stage].here);
  }
}

// Layers of every stage such that pipeline ranks balance; each shares its own among its stages.
std::vector<int32_t> BalancedLayers(const PlanParts& parts, int64_t layers, const Plan& plan) {
  const int64_t per_rank = std::ssize(plan.stages) / plan.grid.pipeline;
  const int64_t more = per_rank - 1;  // layers that a rank has because every stage has one
  std::vector<StageLoad> loads = LoadsOf(parts, layers);
  for (StageLoad& load : loads) {
    load.fixed_ns += more * load.layer_ns;
  }
  const auto of_ranks = BalanceLayers(loads, layers - more * plan.grid.pipeline);
  GP_CHECK(of_ranks.has_value(), "{} layers for {} stages", layers, plan.stages.size());
  std::vector<int64_t> seen(loads.size(), 0);
  std::vector<int32_t> of_stages;
  for (const StagePlan& stage : plan.stages) {
    const int64_t of_rank = (*of_ranks)[stage.pipeline_rank] + more;
    of_stages.push_back(static_cast<int32_t>((of_rank + seen[stage.pipeline_rank]++) / per_rank));
  }
  return of_stages;
}

Plan WithWork(const JobSpec& job, Plan plan, const WorkChoice& work) {
  SetMode(work.mode, plan);
  plan.micro_batch_size = work.micro_batch_size;
  plan.sequence_length = work.sequence_length;
  plan.micro_batches = MicroBatchesOf(job, work.micro_batch_size, work.sequence_length);
  return plan;
}

// Least work on the fullest pipeline rank of `plan`, which has one stage on each, at the best split of the layers, in
// any number of stages.
absl::StatusOr<int64_t> LeastWorkNs(const PlanRequest& request, const CostSource& source, const Plan& plan) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request.cluster, source, plan));
  std::vector<StageLoad> loads = LoadsOf(parts, request.job.model.num_hidden_layers);
  for (StageLoad& load : loads) {
    load.fixed_ns = 0;  // which rank has the head depends on the stages
  }
  return plan.micro_batches * LeastStageTimeNs(loads, request.job.model.num_hidden_layers);
}

// Gives the plan the stages of `shape`, and returns its parts.
absl::StatusOr<PlanParts> LayOut(const PlanRequest& request, const CostSource& source, const PipelineShape& shape,
                                 Plan& plan) {
  const ModelSpec& model = request.job.model;
  if (shape.stages > model.num_hidden_layers) {
    return absl::InvalidArgumentError(
        fmt::format("{} pipeline ranks run {} stages, but model.num_hidden_layers is {} and every stage needs a layer; "
                    "lower parallelism.pipeline",
                    shape.devices, shape.stages, model.num_hidden_layers));
  }
  std::vector<LayerRange> layers = SplitLayers(model, shape.stages);
  plan.stages.clear();
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    plan.stages.push_back({.pipeline_rank = shape.placement[stage], .layers = layers[stage]});
  }
  plan.delta_n.assign(plan.Crossings().size(), 0);
  GP_ASSIGN_OR_RETURN(PlanParts parts, PartsOfPlan(request.job, request.cluster, source, plan));
  if (request.job.parallelism.layers == LayerSplit::kAuto) {
    layers = RangesOf(BalancedLayers(parts, model.num_hidden_layers, plan));
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      plan.stages[stage].layers = layers[stage];
    }
  }
  return parts;
}

// The point without its bound.
absl::StatusOr<SchedulePoint> UnboundedPoint(const PlanRequest& request, const PlanParts& parts, Plan plan) {
  SchedulePoint point{.plan = std::move(plan), .costs = {}, .lower_bound_ns = 0, .delta_n_choices = {}};
  GP_ASSIGN_OR_RETURN(point.costs, CostsOfParts(request.job, parts, point.plan));
  if (RowOf(point.plan.schedule).make == nullptr) {
    CountMessagesInFlight(request.job, point.plan, *point.costs.memory);
    LimitDeltaN(request.job, point.costs);
  }
  return point;
}

void Bound(SchedulePoint& point) {
  const bool is_made = RowOf(point.plan.schedule).make != nullptr;
  point.lower_bound_ns =
      is_made ? LowerBoundNs(point.costs) : MemoryLowerBoundNs(point.costs).value_or(SchedulePoint::kNothingFits);
}

// True when every schedule is as short with `costs` as with `other`, and holds no more. They differ by a ZeRO stage.
bool AsGood(const PipelineCosts& costs, const PipelineCosts& other) {
  const auto no_more = [](const std::vector<int64_t>& values, const std::vector<int64_t>& others) {
    return std::ranges::equal(values, others, std::less_equal<>());
  };
  return costs.epilogue_ns <= other.epilogue_ns && no_more(costs.forward_ns, other.forward_ns) &&
         no_more(costs.input_grad_ns, other.input_grad_ns) && no_more(costs.weight_grad_ns, other.weight_grad_ns) &&
         no_more(costs.memory->static_bytes, other.memory->static_bytes) &&
         no_more(costs.memory->activation_bytes, other.memory->activation_bytes) &&
         no_more(costs.memory->wgrad_bytes, other.memory->wgrad_bytes);
}

// True when a point of another ZeRO stage, one of the last in `points`, is as good. Takes out those that are not as
// good as `point`.
bool IsMatched(const SchedulePoint& point, std::vector<SchedulePoint>& points) {
  const auto differs_by_stage = [&](const Plan& plan) {
    return plan.pipeline_ranks == point.plan.pipeline_ranks && plan.micro_batch_size == point.plan.micro_batch_size &&
           plan.sequence_length == point.plan.sequence_length && plan.stages == point.plan.stages;
  };
  for (size_t i = 0; i < points.size(); ++i) {
    if (differs_by_stage(points[i].plan) && AsGood(points[i].costs, point.costs)) {
      return true;
    }
  }
  std::erase_if(points, [&](const SchedulePoint& each) {
    return differs_by_stage(each.plan) && AsGood(point.costs, each.costs);
  });
  return false;
}

}  // namespace

void LimitDeltaN(const JobSpec& job, PipelineCosts& costs) {
  if (!job.search.max_delta_n.has_value() || !costs.memory.has_value()) {
    return;
  }
  costs.memory->most_in_flight.resize(static_cast<size_t>(costs.shape.stages));
  int64_t ahead = 0;
  for (int32_t stage = costs.shape.stages - 1; stage >= 0; --stage) {
    ahead += stage + 1 < costs.shape.stages && costs.boundaries[stage].crosses ? *job.search.max_delta_n : 0;
    costs.memory->most_in_flight[stage] =
        static_cast<int32_t>(std::min<int64_t>(costs.shape.micro_batches, costs.shape.stages - stage + ahead));
  }
}

absl::StatusOr<SchedulePoint> SchedulePointOf(const PlanRequest& request, const CostSource& source, Plan plan) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request.cluster, source, plan));
  GP_ASSIGN_OR_RETURN(SchedulePoint point, UnboundedPoint(request, parts, std::move(plan)));
  Bound(point);
  return point;
}

absl::StatusOr<std::vector<WorkChoice>> WorkWithin(const PlanRequest& request, const CostSource& source,
                                                   const Plan& plan, int64_t worth_ns) {
  std::vector<WorkChoice> within;
  for (const WorkChoice& work : WorkChoices(request.job)) {
    GP_ASSIGN_OR_RETURN(const int64_t work_ns, LeastWorkNs(request, source, WithWork(request.job, plan, work)));
    if (work_ns <= worth_ns) {
      within.push_back(work);
    }
  }
  return within;
}

absl::StatusOr<std::vector<SchedulePoint>> SchedulePoints(const PlanRequest& request, const CostSource& source,
                                                          Plan plan, ScheduleKind kind, const StageChoice& stages,
                                                          std::span<const WorkChoice> work, LinearLayers linear) {
  plan.schedule = kind;
  std::vector<SchedulePoint> points;
  for (const WorkChoice& choice : work) {
    Plan at = WithWork(request.job, plan, choice);
    const bool is_laid_out = stages.layout != StageLayout::kLinear || linear == LinearLayers::kBalanced;
    const auto shape = [&] {
      return PipelineShape::Of(stages.layout, at.grid.pipeline, at.micro_batches, stages.per_rank);
    };
    GP_ASSIGN_OR_RETURN(const PlanParts parts, is_laid_out ? LayOut(request, source, shape(), at)
                                                           : PartsOfPlan(request.job, request.cluster, source, at));
    if (is_laid_out && at.stages == plan.stages) {
      continue;
    }
    GP_ASSIGN_OR_RETURN(SchedulePoint point, UnboundedPoint(request, parts, std::move(at)));
    if (RowOf(kind).make != nullptr || !IsMatched(point, points)) {
      points.push_back(std::move(point));
    }
  }
  std::ranges::for_each(points, Bound);
  std::ranges::stable_sort(points, {}, &SchedulePoint::lower_bound_ns);
  return points;
}

absl::StatusOr<std::vector<SchedulePoint>> GivenSchedulePoints(const PlanRequest& request, const CostSource& source,
                                                               Plan plan, const std::vector<int32_t>& placement,
                                                               std::span<const WorkChoice> work) {
  plan.schedule = ScheduleKind::kCsv;
  std::vector<SchedulePoint> points;
  for (const WorkChoice& choice : work) {
    Plan at = WithWork(request.job, plan, choice);
    const PipelineShape shape{.devices = at.grid.pipeline,
                              .stages = static_cast<int32_t>(placement.size()),
                              .micro_batches = at.micro_batches,
                              .placement = placement};
    GP_ASSIGN_OR_RETURN(const PlanParts parts, LayOut(request, source, shape, at));
    GP_ASSIGN_OR_RETURN(points.emplace_back(), UnboundedPoint(request, parts, std::move(at)));
  }
  std::ranges::for_each(points, Bound);
  std::ranges::stable_sort(points, {}, &SchedulePoint::lower_bound_ns);
  return points;
}

bool LeastMisfit::Note(const Plan& plan, const PlanPrediction& prediction) {
  size_t worst = 0;
  int64_t excess_bytes = std::numeric_limits<int64_t>::min();
  for (size_t rank = 0; rank < plan.pipeline_ranks.size(); ++rank) {
    const int64_t here_bytes = prediction.peak_bytes[rank] - plan.pipeline_ranks[rank].capacity_bytes;
    worst = here_bytes > excess_bytes ? rank : worst;
    excess_bytes = std::max(excess_bytes, here_bytes);
  }
  if (excess_bytes >= excess_bytes_) {
    return false;
  }
  excess_bytes_ = excess_bytes;
  need_ = fmt::format(
      "pipeline rank {} on site \"{}\" needs {} per device of {} even at micro_batch_size {}, sequence_length {}, "
      "recompute {}",
      worst, plan.pipeline_ranks[worst].site, HumanBytes(prediction.peak_bytes[worst]),
      HumanBytes(plan.pipeline_ranks[worst].capacity_bytes), plan.micro_batch_size, plan.sequence_length,
      RecomputeText(plan));
  return true;
}

}  // namespace geopipe
