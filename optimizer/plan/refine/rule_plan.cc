#include "optimizer/plan/refine/rule_plan.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/scheduler/named_starts.h"

namespace geopipe {
namespace {

class RulePlanner {
 public:
  explicit RulePlanner(const PlanRequest& request) : request_(request), row_(RowOf(request.job.search.schedule)) {}

  absl::StatusOr<Refinement> Run(const std::vector<SchedulePoint>& points) {
    std::vector<Tried> tried;
    for (const SchedulePoint& point : points) {
      if (found_.stopped_early) {
        break;
      }
      Tried& here = tried.emplace_back(Tried{&point.plan, point.lower_bound_ns, true});
      if (point.lower_bound_ns < best_ns_) {
        GP_ASSIGN_OR_RETURN(here.iteration_ns, TryPoint(point));
        here.at_least = false;
      }
    }
    if (!found_.better.has_value()) {
      return none_;
    }
    for (const Tried& other : tried) {
      Reject(other);
    }
    return std::move(found_);
  }

 private:
  struct Tried {
    const Plan* plan = nullptr;
    std::optional<int64_t> iteration_ns;  // nullopt: no schedule fits
    bool at_least = false;                // it was not made: the bound was enough
  };

  // The shortest iteration at this point, if one fits.
  absl::StatusOr<std::optional<int64_t>> TryPoint(const SchedulePoint& point) {
    std::optional<int64_t> shortest_ns;
    for (const std::vector<int32_t>& delta_n : point.delta_n_choices) {
      if (request_.should_stop && request_.should_stop()) {
        found_.stopped_early = true;
        none_.Update(absl::DeadlineExceededError(
            fmt::format("the search was stopped before it found a plan with schedule {} that fits; raise "
                        "search.time_budget",
                        row_.name)));
        break;
      }
      Plan plan = point.plan;
      plan.delta_n = delta_n;
      GP_ASSIGN_OR_RETURN(const std::optional<int64_t> iteration_ns, TryPlan(plan, point));
      if (iteration_ns.has_value() && (!shortest_ns.has_value() || *iteration_ns < *shortest_ns)) {
        shortest_ns = iteration_ns;
      }
    }
    return shortest_ns;
  }

  // The iteration, if one fits; a split backward is tried again within the available memory. `plan` is the point's but
  // for its ΔN, which the point's costs do not know.
  absl::StatusOr<std::optional<int64_t>> TryPlan(const Plan& plan, const SchedulePoint& point) {
    const PipelineCosts& costs = point.costs;
    ScheduleCosts schedule_costs = ScheduleCostsOf(costs);
    for (int round = 0; round < kMemoryRounds; ++round) {
      const absl::StatusOr<Schedule> schedule =
          MakeSchedule(row_.kind, costs.shape, BoundaryDeltaN(plan), schedule_costs);
      if (!schedule.ok()) {
        none_.Update(schedule.status());
        return std::nullopt;
      }
      ++found_.evaluations;
      GP_ASSIGN_OR_RETURN(PlanPrediction prediction, request_.costs.has_value()
                                                         ? PredictGiven(plan, costs, *schedule)
                                                         : PredictSchedule(request_.job, point.plan, costs, *schedule));
      const int64_t iteration_ns = prediction.prediction.iteration_ns;
      if (prediction.fits) {
        if (iteration_ns < best_ns_) {
          best_ns_ = iteration_ns;
          found_.better = {plan, std::move(prediction)};
        }
        return iteration_ns;
      }
      NoteMisfit(plan, prediction);
      if (!row_.splits_backward || !Tighten(prediction, schedule_costs.activation_cap)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // Caps the activations of every device that exceeds its memory. False if it has no room for the fewest that a
  // schedule needs: one of each of its stages.
  static bool Tighten(const PlanPrediction& prediction, std::vector<int64_t>& caps) {
    const MemoryCosts& memory = *prediction.costs.memory;
    const PipelineShape& shape = prediction.costs.shape;
    caps.resize(static_cast<size_t>(shape.devices), std::numeric_limits<int32_t>::max());
    std::vector<int64_t> largest_bytes(caps.size(), 1);
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      int64_t& largest = largest_bytes[shape.placement[stage]];
      largest = std::max(largest, memory.activation_bytes[stage]);
    }
    for (size_t device = 0; device < caps.size(); ++device) {
      if (prediction.peak_bytes[device] > memory.capacity_bytes[device]) {
        const int64_t room_bytes = memory.capacity_bytes[device] - memory.static_bytes[device];
        caps[device] = std::min(caps[device] - 1, room_bytes / largest_bytes[device]);
      }
    }
    return *std::ranges::min_element(caps) >= shape.stages / shape.devices;
  }

  void NoteMisfit(const Plan& plan, const PlanPrediction& prediction) {
    if (misfit_.Note(plan, prediction)) {
      none_ = absl::FailedPreconditionError(
          fmt::format("the job does not fit with schedule {}: {}; use search.schedule auto, or a schedule with fewer "
                      "micro-batches in flight",
                      row_.name, misfit_.need()));
    }
  }

  void Reject(const Tried& tried) {
    const Plan& other = *tried.plan;
    const Plan& chosen = found_.better->plan;
    std::string change;
    const auto add = [&change](std::string_view name, const auto& value, const auto& of_plan) {
      change += value == of_plan ? "" : fmt::format("{}{} {}", change.empty() ? "" : ", ", name, value);
    };
    add("micro_batch_size", other.micro_batch_size, chosen.micro_batch_size);
    add("sequence_length", other.sequence_length, chosen.sequence_length);
    add("recompute", RecomputeText(other), RecomputeText(chosen));
    add("zero_stage", other.zero_stage, chosen.zero_stage);
    if (other.StagesPerRank() != chosen.StagesPerRank()) {
      if (!change.empty()) {
        return;  // of one choice that is another the nearest alternatives are enough
      }
      add("stages per rank", other.StagesPerRank(), chosen.StagesPerRank());
    }
    if (!change.empty()) {
      found_.rejected.push_back({change, tried.iteration_ns.has_value()
                                             ? Slower(*tried.iteration_ns, best_ns_, tried.at_least ? "at least " : "")
                                             : "does not fit, or the schedule is not defined"});
    }
  }

  const PlanRequest& request_;
  const ScheduleRow& row_;
  int64_t best_ns_ = std::numeric_limits<int64_t>::max();
  LeastMisfit misfit_;
  absl::Status none_;  // why there is no plan
  Refinement found_;
};

// ΔN of `guide`, none, and several fractions and multiples of the ΔN that hides the crossings.
std::vector<std::vector<int32_t>> DeltaNToTry(const PlanRequest& request, const Plan& guide,
                                              const SchedulePoint& point) {
  if (!RowOf(point.plan.schedule).uses_delta_n || !request.fixed_delta_n.empty()) {
    return {point.plan.delta_n};
  }
  const std::vector<int32_t> crossings = point.plan.Crossings();
  std::vector<std::vector<int32_t>> tries{std::vector<int32_t>(crossings.size(), 0)};
  if (guide.delta_n.size() == crossings.size()) {
    tries.push_back(guide.delta_n);
  }
  for (const std::vector<int32_t>& of_boundaries : HidingDeltaN(point.costs)) {
    std::vector<int32_t>& delta_n = tries.emplace_back();
    for (const int32_t boundary : crossings) {
      delta_n.push_back(std::min(of_boundaries[boundary], MaxDeltaN(request.job)));
    }
  }
  std::ranges::sort(tries);
  tries.erase(std::unique(tries.begin(), tries.end()), tries.end());
  return tries;
}

}  // namespace

absl::StatusOr<Refinement> PlanByRule(const PlanRequest& request, const CostSource& source, const Plan& plan) {
  const ScheduleRow& row = RowOf(request.job.search.schedule);
  std::vector<SchedulePoint> points;
  for (const StageChoice& stages : StageChoices(request.job, plan.grid.pipeline)) {
    GP_ASSIGN_OR_RETURN(std::vector<SchedulePoint> more,
                        SchedulePoints(request, source, plan, row.kind, stages, WorkChoices(request.job)));
    std::ranges::move(more, std::back_inserter(points));
    if (stages.layout == StageLayout::kLinear && request.job.parallelism.layers == LayerSplit::kAuto) {
      // Layers that suit one mode may be too many for a rank with another.
      GP_ASSIGN_OR_RETURN(more, SchedulePoints(request, source, plan, row.kind, stages, WorkChoices(request.job),
                                               LinearLayers::kBalanced));
      std::ranges::move(more, std::back_inserter(points));
    }
  }
  std::ranges::stable_sort(points, {}, &SchedulePoint::lower_bound_ns);
  for (SchedulePoint& point : points) {
    point.delta_n_choices = DeltaNToTry(request, plan, point);
  }
  return RulePlanner(request).Run(points);
}

absl::StatusOr<Refinement> PlanByRuleAt(const PlanRequest& request, SchedulePoint point) {
  return RulePlanner(request).Run({std::move(point)});
}

}  // namespace geopipe
