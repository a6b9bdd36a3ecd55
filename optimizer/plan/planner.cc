#include "optimizer/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/baselines.h"
#include "optimizer/plan/explain.h"
#include "optimizer/plan/placement.h"
#include "optimizer/plan/plan_space.h"
#include "optimizer/plan/prediction.h"
#include "optimizer/plan/recompute_modes.h"
#include "optimizer/plan/refine_schedule.h"
#include "optimizer/search/exhaustive_search.h"
#include "optimizer/search/genetic_search.h"

namespace geopipe {
namespace {

// What is left of the job's evaluations for spaces beyond the first, at least.
constexpr int64_t kLeastEvaluations = 64;

struct Found {
  std::unique_ptr<PlanSpace> space;
  SearchOutcome outcome;
};

bool IsFeasible(const SearchOutcome& outcome) {
  return !outcome.evaluated.empty() && outcome.evaluated.front().fitness.feasible;
}

const Profile* ProfileOf(const PlanRequest& request) {
  return request.profile.has_value() ? &*request.profile : nullptr;
}

int64_t LeastBoundNs(const PlanSpace& space) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int32_t b = 0; b < space.genome_space().micro_batch_choices; ++b) {
    for (int32_t s = 0; s < space.genome_space().sequence_choices; ++s) {
      least = std::min(least, space.LowerBoundNs(b, s));
    }
  }
  return least;
}

absl::StatusOr<SearchOutcome> Search(const PlanRequest& request, const PlanSpace& space, int64_t evaluations) {
  const SearchProblem problem = space.Problem();
  if (request.method == SearchMethod::kExhaustive) {
    ExhaustiveOptions options;
    options.should_stop = request.should_stop;
    return ExhaustiveSearch(problem, options);
  }
  GeneticOptions options;
  options.seed = request.job.search.seed;
  options.max_evaluations = evaluations;
  options.should_stop = request.should_stop;
  return GeneticSearch(problem, options);
}

// One space for each order of sites that the job can be placed on. With placement auto an order that cannot be placed
// is passed over, unless all are: then the first one's error is the answer.
absl::StatusOr<std::vector<std::unique_ptr<PlanSpace>>> MakeSpaces(const PlanRequest& request, Recompute recompute) {
  std::vector<std::unique_ptr<PlanSpace>> spaces;
  absl::Status first_error;
  for (const std::vector<std::string>& sites : CandidateSiteOrders(request.job, request.cluster)) {
    absl::StatusOr<Placement> placement = PlaceStages(request.job, request.cluster, sites);
    absl::Status status = placement.status();
    if (placement.ok()) {
      absl::StatusOr<PlanSpace> space =
          PlanSpace::Create(request.job, request.cluster, ProfileOf(request), request.comm, request.fixed_delta_n,
                            *std::move(placement), recompute);
      status = space.status();
      if (space.ok()) {
        spaces.push_back(std::make_unique<PlanSpace>(*std::move(space)));
      }
    }
    if (first_error.ok()) {
      first_error = status;
    }
  }
  if (spaces.empty()) {
    return first_error;
  }
  std::stable_sort(spaces.begin(), spaces.end(),
                   [](const auto& a, const auto& b) { return LeastBoundNs(*a) < LeastBoundNs(*b); });
  return spaces;
}

// The best over all orders of sites under one recompute mode; nothing feasible when the outcome says so.
absl::StatusOr<Found> SearchOrders(const PlanRequest& request, Recompute recompute) {
  GP_ASSIGN_OR_RETURN(auto spaces, MakeSpaces(request, recompute));
  Found best;
  int64_t evaluations = 0;
  for (std::unique_ptr<PlanSpace>& space : spaces) {
    if (IsFeasible(best.outcome) && LeastBoundNs(*space) >= best.outcome.evaluated.front().fitness.iteration_ns) {
      break;  // and so are all that follow; among equals the earlier order stays
    }
    const int64_t left = std::max(kLeastEvaluations, request.job.search.max_evaluations - evaluations);
    GP_ASSIGN_OR_RETURN(SearchOutcome outcome, Search(request, *space, left));
    evaluations += outcome.evaluations;
    const bool stopped = outcome.stopped_early;
    const bool better =
        IsFeasible(outcome) && (!IsFeasible(best.outcome) || outcome.evaluated.front().fitness.iteration_ns <
                                                                 best.outcome.evaluated.front().fitness.iteration_ns);
    if (best.space == nullptr || better) {
      best = {std::move(space), std::move(outcome)};
    }
    best.outcome.stopped_early = stopped;
    if (stopped) {
      break;
    }
  }
  best.outcome.evaluations = evaluations;
  return best;
}

// Puts a schedule made to measure in the place of the one that the search found, where it is better.
absl::Status Refine(const PlanRequest& request, PlanResult& result, PlanPrediction& predicted, Candidate& chosen,
                    Evaluated& compared) {
  GP_ASSIGN_OR_RETURN(Refinement refinement, RefineSchedule(request, result.plan, predicted.prediction.iteration_ns));
  result.search.evaluations += refinement.evaluations;
  if (!refinement.better.has_value()) {
    return absl::OkStatus();
  }
  Plan& better = refinement.better->plan;
  const auto index_of = [](const std::vector<int64_t>& choices, int64_t choice) {
    return static_cast<int32_t>(std::find(choices.begin(), choices.end(), choice) - choices.begin());
  };
  const SearchSpec& search = request.job.search;
  chosen.schedule = better.schedule;
  chosen.micro_batch = index_of(search.micro_batch_size, better.micro_batch_size);
  chosen.sequence = index_of(search.sequence_length, better.sequence_length);
  const double ratio = static_cast<double>(predicted.prediction.iteration_ns) /
                       static_cast<double>(refinement.better->prediction.prediction.iteration_ns);
  result.search.rejected.push_back({fmt::format("schedule {}", ScheduleKindName(result.plan.schedule)),
                                    fmt::format("slower by {:.1f} %", 100 * (ratio - 1))});
  result.search.best_so_far_ns.push_back(refinement.better->prediction.prediction.iteration_ns);
  compared.fitness.iteration_ns = refinement.better->prediction.prediction.iteration_ns;
  predicted = std::move(refinement.better->prediction);
  for (size_t stage = 0; stage < better.stages.size(); ++stage) {
    better.stages[stage].peak_bytes = predicted.peak_bytes[stage];
  }
  result.plan = std::move(better);
  return absl::OkStatus();
}

absl::StatusOr<PlanResult> Report(const PlanRequest& request, const Found& found) {
  const PlanSpace& space = *found.space;
  const Evaluated& best = found.outcome.evaluated.front();
  const Candidate candidate = space.CandidateOf(best.genome);
  PlanResult result;
  result.plan = space.PlanOf(candidate);
  GP_ASSIGN_OR_RETURN(PlanPrediction predicted,
                      PredictPlanWithCosts(request.job, result.plan, space.CostsOf(candidate)));
  GP_CHECK(predicted.prediction.iteration_ns == best.fitness.iteration_ns);
  result.search.evaluations = found.outcome.evaluations;
  result.search.best_so_far_ns = found.outcome.best_so_far_ns;
  Candidate chosen = candidate;
  Evaluated compared = best;
  GP_RETURN_IF_ERROR(Refine(request, result, predicted, chosen, compared));
  for (size_t stage = 0; stage < result.plan.stages.size(); ++stage) {
    GP_CHECK(predicted.peak_bytes[stage] <= result.plan.stages[stage].peak_bytes,
             "stage {}: simulated {} bytes, closed form {}", stage, predicted.peak_bytes[stage],
             result.plan.stages[stage].peak_bytes);
    result.plan.stages[stage].peak_bytes = predicted.peak_bytes[stage];
  }
  result.prediction = predicted.prediction;
  result.costs = std::move(predicted.costs);
  result.schedule = std::move(predicted.schedule);
  result.baselines = ScheduleBaselines(space, chosen, request.job.search.seed);
  for (Baseline& baseline : SingleSiteBaseline(request)) {
    result.baselines.push_back(std::move(baseline));
  }
  result.search.method = request.method;
  result.search.space_size = space.size();
  result.search.seed = request.job.search.seed;
  result.search.stopped_early = found.outcome.stopped_early;
  for (RejectedAlternative& rejected : NearestRejected(space, compared, found.outcome)) {
    const bool of_geopipe = chosen.schedule == ScheduleKind::kAuto && rejected.change.starts_with("delta_n");
    rejected.change = of_geopipe ? fmt::format("geopipe, {}", rejected.change) : rejected.change;
    result.search.rejected.push_back(std::move(rejected));
  }
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request) {
  GP_RETURN_IF_ERROR(ValidateJob(request.job));
  GP_RETURN_IF_ERROR(ValidateCluster(request.cluster));
  std::vector<std::string> sites;
  for (const Recompute recompute : RecomputeModes(request.job)) {
    GP_ASSIGN_OR_RETURN(const Found found, SearchOrders(request, recompute));
    if (IsFeasible(found.outcome)) {
      return Report(request, found);
    }
    // The order that an infeasible job is explained on: that of the first space searched.
    sites.clear();
    for (const StagePlan& stage : found.space->placement().stages) {
      if (sites.empty() || sites.back() != stage.site) {
        sites.push_back(stage.site);
      }
    }
  }
  return Infeasible(request, sites);
}

}  // namespace geopipe
