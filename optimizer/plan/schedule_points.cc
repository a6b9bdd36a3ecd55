#include "optimizer/plan/schedule_points.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan_costs.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/layer_split.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// The more micro-batches a schedule has in flight, the more messages it holds (StageNeeds::BoundaryMessages). Costs of
// a plan count those of its own kind and ΔN once and for all; a schedule still to be made pays for each with its
// micro-batch. Where it has as many in flight as the plan, both are the same.
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

// Layers of every stage such that pipeline ranks balance; each shares its own out over its stages.
absl::StatusOr<std::vector<int32_t>> BalancedLayers(const PlanRequest& request, const CostSource& source,
                                                    const Plan& plan) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request.cluster, source, plan));
  const int64_t layers = request.job.model.num_hidden_layers;
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

// Of the layers on the fullest pipeline rank of `plan`, which has one stage on each, at the best split of them, however
// many stages they are in.
absl::StatusOr<int64_t> LeastWorkNs(const PlanRequest& request, const CostSource& source, const Plan& plan) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(request.job, request.cluster, source, plan));
  std::vector<StageLoad> loads = LoadsOf(parts, request.job.model.num_hidden_layers);
  for (StageLoad& load : loads) {
    load.fixed_ns = 0;  // which rank has the head depends on the stages
  }
  return plan.micro_batches * LeastStageTimeNs(loads, request.job.model.num_hidden_layers);
}

absl::Status LayOut(const PlanRequest& request, const CostSource& source, const StageChoice& stages, Plan& plan) {
  const PipelineShape shape = PipelineShape::Of(stages.layout, plan.grid.pipeline, plan.micro_batches, stages.per_rank);
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
  if (request.job.parallelism.layers == LayerSplit::kAuto) {
    GP_ASSIGN_OR_RETURN(const std::vector<int32_t> balanced, BalancedLayers(request, source, plan));
    layers = RangesOf(balanced);
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      plan.stages[stage].layers = layers[stage];
    }
  }
  plan.delta_n.assign(plan.Crossings().size(), 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SchedulePoint> SchedulePointOf(const PlanRequest& request, const CostSource& source, Plan plan) {
  SchedulePoint point{.plan = std::move(plan), .costs = {}, .lower_bound_ns = 0, .delta_n_choices = {}};
  GP_ASSIGN_OR_RETURN(point.costs, CostsOfPlan(request.job, request.cluster, source, point.plan));
  if (RowOf(point.plan.schedule).make != nullptr) {
    point.lower_bound_ns = LowerBoundNs(point.costs);
    return point;
  }
  CountMessagesInFlight(request.job, point.plan, *point.costs.memory);
  point.lower_bound_ns = MemoryLowerBoundNs(point.costs).value_or(SchedulePoint::kNothingFits);
  return point;
}

absl::StatusOr<std::vector<SchedulePoint>> SchedulePoints(const PlanRequest& request, const CostSource& source,
                                                          Plan plan, ScheduleKind kind, const StageChoice& stages,
                                                          std::span<const Recompute> modes, int64_t worth_ns) {
  const JobSpec& job = request.job;
  plan.schedule = kind;
  std::vector<SchedulePoint> points;
  for (const Recompute mode : modes) {
    for (const int64_t micro_batch_size : job.search.micro_batch_size) {
      for (const int64_t sequence_length : job.search.sequence_length) {
        plan.recompute = mode;
        plan.micro_batch_size = micro_batch_size;
        plan.sequence_length = sequence_length;
        plan.micro_batches = MicroBatchesOf(job, micro_batch_size, sequence_length);
        if (plan.micro_batches == 0) {
          continue;
        }
        if (worth_ns < SchedulePoint::kNothingFits) {
          GP_ASSIGN_OR_RETURN(const int64_t work_ns, LeastWorkNs(request, source, plan));
          if (work_ns > worth_ns) {
            continue;
          }
        }
        Plan at = plan;
        if (stages.layout != StageLayout::kLinear) {
          GP_RETURN_IF_ERROR(LayOut(request, source, stages, at));
        }
        GP_ASSIGN_OR_RETURN(points.emplace_back(), SchedulePointOf(request, source, std::move(at)));
      }
    }
  }
  std::ranges::stable_sort(points, {}, &SchedulePoint::lower_bound_ns);
  return points;
}

}  // namespace geopipe
