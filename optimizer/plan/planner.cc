#include "optimizer/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/given_costs.h"
#include "optimizer/plan/refine_schedule.h"
#include "optimizer/plan/report/baselines.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/rule_plan.h"
#include "optimizer/plan/shape_search.h"
#include "optimizer/plan/space/plan_space.h"

namespace geopipe {
namespace {

// Whether the search runs another kind in place of the job's.
bool IsMadeByRule(const JobSpec& job) {
  const ScheduleKind kind = job.search.schedule;
  return kind != ScheduleKind::kAuto && kind != SearchedKind(kind);
}

// Puts a schedule that the search does not run itself in the place of the one that it found: made to measure, where it
// is better, or by the rule that the job asks for.
absl::Status Refine(const PlanRequest& request, const CostSource& source, PlanResult& result, PlanPrediction& predicted,
                    Candidate& chosen, Evaluated& compared) {
  const bool by_rule = IsMadeByRule(request.job);
  GP_ASSIGN_OR_RETURN(Refinement refinement,
                      by_rule ? PlanByRule(request, source, result.plan)
                              : RefineSchedule(request, source, result.plan, predicted.prediction.iteration_ns));
  result.search.evaluations += refinement.evaluations;
  if (!refinement.better.has_value()) {
    return absl::OkStatus();
  }
  result.search.rejected = std::move(refinement.rejected);
  Plan& better = refinement.better->plan;
  const auto index_of = [](const std::vector<int64_t>& choices, int64_t choice) {
    return static_cast<int32_t>(std::find(choices.begin(), choices.end(), choice) - choices.begin());
  };
  const SearchSpec& search = request.job.search;
  chosen.schedule = better.schedule;
  chosen.micro_batch = index_of(search.micro_batch_size, better.micro_batch_size);
  chosen.sequence = index_of(search.sequence_length, better.sequence_length);
  if (by_rule) {
    result.search.best_so_far_ns.clear();  // of the kind that stood in for the job's
  } else {
    const double ratio = static_cast<double>(predicted.prediction.iteration_ns) /
                         static_cast<double>(refinement.better->prediction.prediction.iteration_ns);
    result.search.rejected.push_back({fmt::format("schedule {}", ScheduleKindName(result.plan.schedule)),
                                      fmt::format("slower by {}", HumanPercent(ratio - 1))});
  }
  result.search.best_so_far_ns.push_back(refinement.better->prediction.prediction.iteration_ns);
  compared.fitness.iteration_ns = refinement.better->prediction.prediction.iteration_ns;
  predicted = std::move(refinement.better->prediction);
  for (size_t rank = 0; rank < better.pipeline_ranks.size(); ++rank) {
    better.pipeline_ranks[rank].peak_bytes = predicted.peak_bytes[rank];
  }
  result.plan = std::move(better);
  return absl::OkStatus();
}

// What the plan's costs rest on, site by site in the plan's order.
std::vector<SiteCostReport> CostReports(const PlanRequest& request, const CostSource& source, const Plan& plan) {
  std::vector<SiteCostReport> reports;
  if (source.profile() == nullptr || source.profile()->entries.empty()) {
    return reports;
  }
  std::vector<std::pair<std::string_view, std::set<int32_t>>> sites;  // the first device of each pipeline rank there
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    const std::string& site = plan.pipeline_ranks[rank].site;
    if (sites.empty() || sites.back().first != site) {
      sites.push_back({site, {}});
    }
    sites.back().second.insert(plan.DevicesOf(rank).front().device);
  }
  const ExecutionConfig config =
      MakeExecutionConfig(request.job, plan.micro_batch_size, plan.sequence_length, plan.recompute);
  for (const auto& [site, devices] : sites) {
    reports.push_back(source.Report(config, *request.cluster.FindSite(site), devices));
  }
  return reports;
}

absl::StatusOr<PlanResult> Report(const PlanRequest& request, const CostSource& source, const ShapeFound& found) {
  const PlanSpace& space = *found.space;
  const CandidateModel& model = space.model();
  const Evaluated& best = found.outcome.evaluated.front();
  const Candidate candidate = space.CandidateOf(best.genome);
  PlanResult result;
  result.plan = model.PlanOf(candidate);
  GP_ASSIGN_OR_RETURN(PlanPrediction predicted, PredictPlan(model.job(), result.plan, model.CostsOf(candidate)));
  GP_CHECK(predicted.prediction.iteration_ns == best.fitness.iteration_ns);
  result.search.evaluations = found.evaluations;
  result.search.best_so_far_ns = found.best_so_far_ns;
  PlanRequest same_degrees = request;
  same_degrees.job = JobOfPlan(request.job, result);
  Candidate chosen = candidate;
  Evaluated compared = best;
  GP_RETURN_IF_ERROR(Refine(same_degrees, source, result, predicted, chosen, compared));
  for (size_t rank = 0; rank < result.plan.pipeline_ranks.size(); ++rank) {
    int64_t& peak_bytes = result.plan.pipeline_ranks[rank].peak_bytes;
    GP_CHECK(predicted.peak_bytes[rank] <= peak_bytes, "pipeline rank {}: simulated {} bytes, closed form {}", rank,
             predicted.peak_bytes[rank], peak_bytes);
    peak_bytes = predicted.peak_bytes[rank];
  }
  result.prediction = predicted.prediction;
  result.costs = std::move(predicted.costs);
  result.schedule = std::move(predicted.schedule);
  result.baselines = ScheduleBaselines(model, chosen, candidate, space.searches_delta_n(), request.job.search.seed);
  for (Baseline& baseline : SingleSiteBaseline(request, source, result)) {
    result.baselines.push_back(std::move(baseline));
  }
  result.cost_reports = CostReports(same_degrees, source, result.plan);
  result.search.method = request.method;
  result.search.space_size = found.space_size;
  result.search.seed = request.job.search.seed;
  result.search.unproven = found.unproven;
  result.search.stopped_early = found.stopped_early;
  if (IsMadeByRule(request.job)) {
    return result;  // what follows compares the kind that stood in for the job's
  }
  if (found.other.has_value()) {
    result.search.rejected.push_back(RejectedShape(found.shape, *found.other, best.fitness.iteration_ns));
  }
  for (RejectedAlternative& rejected : NearestRejected(space, compared, found.outcome)) {
    const bool of_geopipe = chosen.schedule == ScheduleKind::kAuto && rejected.change.starts_with("delta_n");
    rejected.change = of_geopipe ? fmt::format("geopipe, {}", rejected.change) : rejected.change;
    result.search.rejected.push_back(std::move(rejected));
  }
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request) {
  if (request.costs.has_value()) {
    return PlanWithGivenCosts(request);
  }
  GP_RETURN_IF_ERROR(ValidateJob(request.job));
  GP_RETURN_IF_ERROR(ValidateCluster(request.cluster));
  if (IsMadeByRule(request.job) && request.method == SearchMethod::kExhaustive) {
    return absl::InvalidArgumentError(fmt::format("--search exhaustive proves {}; leave it out for schedule {}",
                                                  ScheduleNames(&ScheduleRow::searched),
                                                  ScheduleKindName(request.job.search.schedule)));
  }
  const CostSource source(request.job, request.cluster, request.profile.has_value() ? &*request.profile : nullptr);
  GP_ASSIGN_OR_RETURN(const ShapeFound found, SearchShapes(request, source));
  if (found.space != nullptr) {
    return Report(request, source, found);
  }
  if (found.stopped_early) {
    return absl::DeadlineExceededError(
        fmt::format("the search was stopped after {} evaluations, before it found a plan that fits; raise "
                    "search.time_budget, or leave it less to choose from",
                    found.evaluations));
  }
  return Infeasible(request, found.most_frugal);
}

}  // namespace geopipe
