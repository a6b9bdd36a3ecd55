#include "optimizer/plan/refine/refine_schedule.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// Limit of timed actions of one refinement, over all b and s, and of each mode: a fraction of a second.
constexpr int64_t kRefinementActions = 12'000'000;
constexpr int64_t kSurveyActions = 4'000'000;  // for each ZeRO stage that is open
constexpr int64_t kSurveyEvaluations = 12;     // at each point: the starts and the first list schedules
constexpr size_t kTriedAtOnce = 4;             // on as many threads as there are, with the same results
constexpr size_t kRefinedPoints = 3;           // of those surveyed, and of every other mode the best if it is close
constexpr double kCloseSurvey = 1.1;
constexpr int64_t kRoundsGainPpm = 3'000;  // by how much a schedule may still get shorter with less memory
constexpr int64_t kRefinementGapPpm = 200;
// Gain that a searched schedule must have over a plan by rule, which is easier to understand.
constexpr int64_t kMinGainPpm = 1'000;
// Latencies of crossings on the rungs of the ladder, in what the slowest stage takes for a micro-batch, and the timed
// actions of each rung.
constexpr double kRungs[] = {1.0 / 16, 0.25, 1, 3};
constexpr int64_t kRungActions = 4'000'000;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max() / 4;

class Refiner {
 public:
  Refiner(const PlanRequest& request, const CostSource& source, int64_t iteration_ns)
      : request_(request), source_(source), best_ns_(iteration_ns) {}

  absl::StatusOr<Refinement> Run(const Plan& plan, RefineEffort effort) {
    GP_ASSIGN_OR_RETURN(const std::vector<SchedulePoint> points, AllPoints(plan));
    refinement_.bound_ns = points.empty() ? kNone : points.front().lower_bound_ns;
    // Longer schedules are tried only in a full refinement, where they show where to search further.
    const bool limited = effort == RefineEffort::kSurvey;
    std::vector<Tried> surveyed;
    int64_t actions = 0;
    const int64_t survey_actions = kSurveyActions * std::ssize(ZeroStages(request_.job));
    while (surveyed.size() < points.size() && actions < survey_actions && !Stopped()) {
      // The first result limits the others.
      const size_t at_once = limited && surveyed.empty() ? 1 : kTriedAtOnce;
      const std::span<const SchedulePoint> batch =
          std::span(points).subspan(surveyed.size(), std::min(at_once, points.size() - surveyed.size()));
      if (batch.front().lower_bound_ns > WorthNs()) {
        break;
      }
      std::vector<Tried> tried(batch.size());
      InParallel(request_.parallel_for, std::ssize(batch), [&, worth_ns = WorthNs()](int64_t i) {
        tried[i] = Try(batch[i], kSurveyEvaluations, worth_ns, limited ? worth_ns : kNone);
      });
      for (Tried& each : tried) {
        GP_RETURN_IF_ERROR(Take(each));
        actions += each.actions;
      }
      std::ranges::move(tried, std::back_inserter(surveyed));
    }
    if (!limited) {
      GP_RETURN_IF_ERROR(SearchFurther(std::move(surveyed)));
    }
    return std::move(refinement_);
  }

  // Finds the shortest at this point under its own costs and those of slower crossings.
  absl::StatusOr<Refinement> Polish(const SchedulePoint& point) {
    std::vector<PipelineCosts> rungs = Ladder(point.costs);
    std::vector<Tried> tried(rungs.size());
    InParallel(request_.parallel_for, std::ssize(rungs), [&](int64_t i) {
      const int64_t actions = i == 0 ? kRefinementActions : kRungActions;
      tried[i] = TryRung(point, std::move(rungs[i]), EvaluationsWithin(point.costs, actions));
    });
    for (Tried& each : tried) {
      GP_RETURN_IF_ERROR(each.status);
      refinement_.evaluations += each.evaluations;
      if (each.better.has_value() && each.iteration_ns < best_ns_) {
        best_ns_ = each.iteration_ns;
        refinement_.better = std::move(each.better);
      }
    }
    refinement_.stopped_early = Stopped();
    return std::move(refinement_);
  }

  // Refines at this point alone, with about `actions` timed actions; takes any plan that is not longer than the best so
  // far.
  absl::StatusOr<Refinement> RunAt(const SchedulePoint& point, int64_t actions) {
    Tried tried = Try(point, EvaluationsWithin(point.costs, actions), best_ns_, kNone);
    GP_RETURN_IF_ERROR(tried.status);
    refinement_.evaluations = tried.evaluations;
    if (tried.better.has_value() && tried.iteration_ns <= best_ns_) {
      refinement_.better = std::move(tried.better);
    }
    return std::move(refinement_);
  }

 private:
  // The result of a point.
  struct Tried {
    const SchedulePoint* point = nullptr;
    absl::Status status;
    int64_t iteration_ns = kNone;  // kNone: none fits, or none of interest
    std::optional<RefinedPlan> better;
    int64_t evaluations = 0;
    int64_t actions = 0;  // timed for them
  };

  // The costs themselves first, then with every crossing as slow as a rung, the least first.
  static std::vector<PipelineCosts> Ladder(const PipelineCosts& costs) {
    std::vector<PipelineCosts> rungs{costs};
    int64_t period_ns = 1;
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      period_ns = std::max(period_ns, costs.forward_ns[stage] + costs.BackwardNs(stage));
    }
    for (const double rung : kRungs) {
      PipelineCosts slower = costs;
      const auto least_ns = static_cast<int64_t>(rung * static_cast<double>(period_ns));
      for (BoundaryCost& boundary : slower.boundaries) {
        boundary.latency_ns = boundary.crosses ? std::max(boundary.latency_ns, least_ns) : boundary.latency_ns;
      }
      if (slower.boundaries != rungs.back().boundaries) {
        rungs.push_back(std::move(slower));
      }
    }
    return rungs;
  }

  // Searches under `costs` and times what it finds under the point's own.
  Tried TryRung(const SchedulePoint& point, PipelineCosts costs, int64_t evaluations) const {
    Tried tried;
    tried.point = &point;
    const AutoOptions options{.seed = request_.job.search.seed,
                              .evaluations = evaluations,
                              .stop_gap_ppm = kRefinementGapPpm,
                              .stop = request_.should_stop};
    for (int round = 0; round < kMemoryRounds && !Stopped(); ++round) {
      const absl::StatusOr<AutoSchedule> found = FindSchedule(costs, options);
      if (!found.ok()) {
        tried.status = absl::IsFailedPrecondition(found.status()) ? absl::OkStatus() : found.status();
        break;
      }
      tried.evaluations += found->evaluations;
      absl::StatusOr<RefinedPlan> exact = Exactly(point.plan, *found, point.costs);
      if (!exact.ok()) {
        tried.status = exact.status();
        break;
      }
      if (exact->prediction.fits && !LimitAhead(*exact, *costs.memory)) {
        tried.iteration_ns = exact->prediction.prediction.iteration_ns;
        tried.better = *std::move(exact);
        break;
      }
      TakeMemory(*exact, round, *costs.memory);
    }
    return tried;
  }

  // Searches the best of those that may still become shorter, and of every other mode its best if that is close.
  absl::Status SearchFurther(std::vector<Tried> surveyed) {
    std::ranges::stable_sort(surveyed, {}, &Tried::iteration_ns);
    int64_t actions_left = kRefinementActions;
    size_t searched = 0;
    std::set<std::pair<std::optional<Recompute>, int32_t>> modes;
    for (const Tried& each : surveyed) {
      const Plan& plan = each.point->plan;
      const bool is_close =
          static_cast<double>(each.iteration_ns) <= kCloseSurvey * static_cast<double>(surveyed.front().iteration_ns);
      if (each.point->lower_bound_ns > WorthNs()) {
        continue;
      }
      const bool is_new = is_close && modes.insert({plan.SameRecompute(), plan.zero_stage}).second;
      if (!is_new && searched >= kRefinedPoints) {
        continue;
      }
      if (is_new) {
        actions_left = kRefinementActions;  // one that leaves more memory may get farther with as many
      }
      if (actions_left <= 0 || Stopped()) {
        break;
      }
      ++searched;
      Tried tried = Try(*each.point, EvaluationsWithin(each.point->costs, actions_left), WorthNs(), kNone);
      GP_RETURN_IF_ERROR(Take(tried));
      actions_left -= tried.actions;
    }
    return absl::OkStatus();
  }

  // All points, by lower bound.
  absl::StatusOr<std::vector<SchedulePoint>> AllPoints(const Plan& plan) const {
    GP_ASSIGN_OR_RETURN(const std::vector<WorkChoice> work, WorkWithin(request_, source_, plan, WorthNs()));
    std::vector<SchedulePoint> points;
    for (const StageChoice& stages : StageChoices(request_.job, plan.grid.pipeline)) {
      absl::StatusOr<std::vector<SchedulePoint>> more =
          SchedulePoints(request_, source_, plan, ScheduleKind::kAuto, stages, work);
      if (stages.layout != StageLayout::kLinear && absl::IsInvalidArgument(more.status())) {
        continue;  // there is no link back to the first site
      }
      GP_RETURN_IF_ERROR(more.status());
      std::ranges::move(*more, std::back_inserter(points));
    }
    if (request_.job.parallelism.layers == LayerSplit::kAuto && MinStagesPerRank(request_.job) == 1) {
      // Layers that suit one mode are too many for a rank, or too few, with another.
      GP_ASSIGN_OR_RETURN(std::vector<SchedulePoint> more, SchedulePoints(request_, source_, plan, ScheduleKind::kAuto,
                                                                          {}, work, LinearLayers::kBalanced));
      std::ranges::move(more, std::back_inserter(points));
    }
    std::ranges::stable_sort(points, {}, &SchedulePoint::lower_bound_ns);
    return points;
  }

  // Time by which a schedule must end to replace the plan by rule, or the best so far.
  int64_t WorthNs() const {
    return refinement_.better.has_value() ? best_ns_ - 1 : best_ns_ - best_ns_ / 1'000'000 * kMinGainPpm;
  }
  bool Stopped() const { return request_.should_stop && request_.should_stop(); }

  // Takes a try, unless an earlier one is as good: of tries that began alike the first of the best stays.
  absl::Status Take(Tried& tried) {
    GP_RETURN_IF_ERROR(tried.status);
    refinement_.evaluations += tried.evaluations;
    if (tried.better.has_value() && tried.iteration_ns <= WorthNs()) {
      best_ns_ = tried.iteration_ns;
      refinement_.better = std::move(tried.better);
    }
    return absl::OkStatus();
  }

  // Makes schedules for a point. The memory of all messages follows from the schedule, so it is known only afterwards:
  // within that much less memory the schedule is made again. `limit_ns`: greatest time of interest (AutoOptions).
  Tried Try(const SchedulePoint& point, int64_t evaluations, int64_t worth_ns, int64_t limit_ns) const {
    Tried tried;
    tried.point = &point;
    PipelineCosts costs = point.costs;
    for (int round = 0; round < kMemoryRounds && tried.status.ok() && !Stopped(); ++round) {
      const int64_t bound_ns =
          round == 0 ? point.lower_bound_ns : MemoryLowerBoundNs(costs).value_or(SchedulePoint::kNothingFits);
      if (bound_ns > worth_ns) {
        break;
      }
      const AutoOptions options{.seed = request_.job.search.seed,
                                .evaluations = evaluations,
                                .stop_gap_ppm = kRefinementGapPpm,
                                .limit_ns = limit_ns,
                                .stop = request_.should_stop};
      const absl::StatusOr<AutoSchedule> found = FindSchedule(costs, options);
      if (!found.ok()) {
        tried.status = absl::IsFailedPrecondition(found.status()) ? absl::OkStatus() : found.status();
        break;
      }
      tried.evaluations += found->evaluations;
      tried.actions += found->evaluations * 3 * costs.shape.stages * costs.shape.micro_batches;
      // The search with less memory takes another course, whose result may be the better one.
      const int64_t slack_ns = limit_ns == kNone ? found->iteration_ns / 1'000'000 * kRoundsGainPpm : 0;
      if (found->iteration_ns - slack_ns > worth_ns) {
        tried.iteration_ns = found->iteration_ns;
        break;
      }
      absl::StatusOr<RefinedPlan> exact = Exactly(point.plan, *found, costs);
      if (!exact.ok()) {
        tried.status = exact.status();
        break;
      }
      if (!exact->prediction.fits) {
        TakeMemory(*exact, round, *costs.memory);
      } else if (!LimitAhead(*exact, *costs.memory)) {
        tried.iteration_ns = exact->prediction.prediction.iteration_ns;
        tried.better = *std::move(exact);
        break;
      }
    }
    return tried;
  }

  // The plan with this schedule, and the costs of its messages.
  absl::StatusOr<RefinedPlan> Exactly(Plan plan, const AutoSchedule& found, const PipelineCosts& costs) const {
    plan.delta_n = EquivalentDeltaN(found.schedule, costs);
    GP_ASSIGN_OR_RETURN(PipelineCosts exact, CostsOfPlan(request_.job, request_.cluster, source_, plan));
    GP_ASSIGN_OR_RETURN(PlanPrediction prediction,
                        PredictSchedule(request_.job, plan, std::move(exact), found.schedule));
    return RefinedPlan{std::move(plan), std::move(prediction)};
  }

  // Limits each stage further that ran farther ahead at one of several crossings than the job lets it. Returns false if
  // none did.
  bool LimitAhead(const RefinedPlan& made, MemoryCosts& memory) const {
    const std::optional<int32_t>& most = request_.job.search.max_delta_n;
    const std::vector<int32_t> crossings = made.plan.Crossings();
    bool exceeds = false;
    for (size_t i = 0; most.has_value() && i < crossings.size(); ++i) {
      const int64_t more = made.plan.delta_n[i] - int64_t{*most};
      if (more > 0) {
        exceeds = true;
        int32_t& in_flight = memory.most_in_flight[crossings[i]];
        in_flight = static_cast<int32_t>(std::max<int64_t>(1, in_flight - more));
      }
    }
    return exceeds;
  }

  // Subtracts memory that a schedule exceeded from that available.
  static void TakeMemory(const RefinedPlan& exceeding, int round, MemoryCosts& memory) {
    for (size_t rank = 0; rank < exceeding.plan.pipeline_ranks.size(); ++rank) {
      const int64_t capacity_bytes = exceeding.plan.pipeline_ranks[rank].capacity_bytes;
      const int64_t excess_bytes = exceeding.prediction.peak_bytes[rank] - capacity_bytes;
      if (excess_bytes > 0) {
        memory.static_bytes[rank] += std::max(excess_bytes, capacity_bytes / 256) << round;
      }
    }
  }

  const PlanRequest& request_;
  const CostSource& source_;
  int64_t best_ns_ = 0;
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
  for (size_t rank = 0; rank < predicted.peak_bytes.size(); ++rank) {  // empty if costs are given without memory
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
                                          int64_t iteration_ns, RefineEffort effort) {
  if (!request.refine || request.job.search.schedule != ScheduleKind::kAuto || request.comm != CommMode::kNonBlocking ||
      !request.fixed_delta_n.empty()) {
    return Refinement{};
  }
  return Refiner(request, source, NeedsMoreStages(request.job) ? kNone : iteration_ns)
      .Run(plan, request.refine_fully ? effort : RefineEffort::kSurvey);
}

absl::StatusOr<Refinement> PolishSchedule(const PlanRequest& request, const CostSource& source, const Plan& plan,
                                          int64_t iteration_ns) {
  if (!request.refine || !request.refine_fully || request.job.search.schedule != ScheduleKind::kAuto ||
      request.comm != CommMode::kNonBlocking || !request.fixed_delta_n.empty()) {
    return Refinement{};
  }
  Plan made_to_measure = plan;
  made_to_measure.schedule = ScheduleKind::kAuto;
  GP_ASSIGN_OR_RETURN(const SchedulePoint point, SchedulePointOf(request, source, std::move(made_to_measure)));
  if (point.lower_bound_ns >= iteration_ns) {
    return Refinement{};
  }
  return Refiner(request, source, iteration_ns).Polish(point);
}

bool NeedsMoreStages(const JobSpec& job) {
  return job.search.schedule == ScheduleKind::kAuto && job.parallelism.stages_per_rank > 1;
}

absl::StatusOr<Refinement> SearchScheduleAt(const PlanRequest& request, const CostSource& source,
                                            const SchedulePoint& point, int64_t iteration_ns, int64_t actions) {
  return Refiner(request, source, iteration_ns - 1).RunAt(point, actions);
}

}  // namespace geopipe
