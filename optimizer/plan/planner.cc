#include "optimizer/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/host_memory.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/bound/cluster_bound.h"
#include "optimizer/plan/close_shapes.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/fewer_sites.h"
#include "optimizer/plan/frugal_plan.h"
#include "optimizer/plan/given_costs.h"
#include "optimizer/plan/given_schedule.h"
#include "optimizer/plan/refine/grid_search.h"
#include "optimizer/plan/refine/mixed_recompute.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/refine/rule_plan.h"
#include "optimizer/plan/report/baselines.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/report/plan_warnings.h"
#include "optimizer/plan/shape_search.h"
#include "optimizer/plan/space/plan_space.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

absl::Status NoneWithMoreStages(const PlanRequest& request) {
  const int32_t per_rank = request.job.parallelism.stages_per_rank;
  if (request.comm != CommMode::kNonBlocking || !request.fixed_delta_n.empty()) {
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.stages_per_rank is {}, but with {} schedule auto has one stage on a rank; leave either out",
        per_rank, request.comm != CommMode::kNonBlocking ? "blocking messages" : "a given ΔN"));
  }
  return absl::FailedPreconditionError(fmt::format(
      "parallelism.stages_per_rank is {}, and no schedule with so many was found that fits; lower it, or leave it auto",
      per_rank));
}

// Replaces the search's schedule by one that the search does not run itself: by `known` (may be null), or by one that
// is searched for on its own, if it is better; or by the one of the rule that the job asks for.
absl::Status Refine(const PlanRequest& request, const CostSource& source, const Refinement* known, PlanResult& result,
                    Candidate& chosen, Evaluated& compared) {
  const bool by_rule = IsMadeByRule(request.job);
  const ScheduleKind searched = result.plan.schedule;
  const int64_t searched_ns = result.prediction.iteration_ns;
  const auto refine = [&]() -> absl::StatusOr<Refinement> {
    return known != nullptr ? *known
           : by_rule        ? PlanByRule(request, source, result.plan)
                            : RefineSchedule(request, source, result.plan, searched_ns);
  };
  GP_ASSIGN_OR_RETURN(Refinement refinement, refine());
  const bool is_asked_for = by_rule || NeedsMoreStages(request.job);
  const bool is_better = refinement.better.has_value() &&
                         (is_asked_for || refinement.better->prediction.prediction.iteration_ns < searched_ns);
  if (!is_better) {
    if (NeedsMoreStages(request.job)) {
      return NoneWithMoreStages(request);
    }
    result.search.evaluations += refinement.evaluations;
    return absl::OkStatus();
  }
  TakePlan(std::move(refinement), result);
  const auto index_of = [](const std::vector<int64_t>& choices, int64_t choice) {
    return static_cast<int32_t>(std::ranges::find(choices, choice) - choices.begin());
  };
  const int64_t iteration_ns = result.prediction.iteration_ns;
  const SearchSpec& search = request.job.search;
  chosen.schedule = result.plan.schedule;
  chosen.micro_batch = index_of(search.micro_batch_size, result.plan.micro_batch_size);
  chosen.sequence = index_of(search.sequence_length, result.plan.sequence_length);
  const Recompute first = result.plan.pipeline_ranks.front().recompute;  // ranks that differ stand for one mode
  chosen.mode = {result.plan.SameRecompute().value_or(request.job.parallelism.recompute.value_or(first)),
                 result.plan.zero_stage};
  if (result.plan.stages.size() == chosen.layers.size()) {
    std::ranges::transform(result.plan.stages, chosen.layers.begin(),
                           [](const StagePlan& stage) { return static_cast<int32_t>(stage.layers.count()); });
  }
  if (RowOf(chosen.schedule).searched && RowOf(chosen.schedule).uses_delta_n) {
    chosen.delta_n = result.plan.delta_n;
  }
  compared.fitness.iteration_ns = iteration_ns;
  if (by_rule) {
    result.search.best_so_far_ns.clear();  // of the kind that stood in for the job's
  } else if (searched != chosen.schedule) {
    const double ratio = static_cast<double>(searched_ns) / static_cast<double>(iteration_ns);
    result.search.rejected.push_back(
        {fmt::format("schedule {}", ScheduleKindName(searched)), fmt::format("slower by {}", HumanPercent(ratio - 1))});
  }
  result.search.best_so_far_ns.push_back(iteration_ns);
  return absl::OkStatus();
}

// Sources of the plan's costs, site by site in the plan's order.
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
  const ExecutionConfig config = ConfigOfPlan(request.job, plan);
  for (const auto& [site, devices] : sites) {
    reports.push_back(source.Report(config, *request.cluster.FindSite(site), devices));
  }
  return reports;
}

// Notes why the search did not try larger degrees that the job leaves to it.
void NoteMissingBandwidth(const PlanRequest& request, SearchReport& report) {
  const ParallelismSpec& parallelism = request.job.parallelism;
  const bool tensor = parallelism.tensor == 0;
  const bool data = parallelism.data == 0;
  for (const SiteSpec& site : request.cluster.sites) {
    if ((tensor || data) && site.devices_per_node > 1 && site.device.intra_node_bandwidth_bytes_per_s <= 0) {
      report.rejected.push_back(
          {fmt::format("{} above 1", tensor && data ? "tensor, data" : (tensor ? "tensor" : "data")),
           fmt::format("site \"{}\" does not say its device.intra_node_bandwidth, which they need", site.name)});
      return;
    }
  }
}

// Makes the result. `known`: a plan of this very shape, in place of a refinement; may be null.
absl::StatusOr<PlanResult> Report(const PlanRequest& request, const CostSource& source, const ShapeFound& found,
                                  const Refinement* known) {
  const PlanSpace& space = *found.space;
  const CandidateModel& model = space.model();
  const Evaluated& best = found.outcome.evaluated.front();
  const Candidate candidate = space.CandidateOf(best.genome);
  RefinedPlan searched{model.PlanOf(candidate), {}};
  GP_ASSIGN_OR_RETURN(searched.prediction, PredictPlan(model.job(), searched.plan, model.CostsOf(candidate)));
  GP_CHECK(searched.prediction.prediction.iteration_ns == best.fitness.iteration_ns);
  for (size_t rank = 0; rank < searched.plan.pipeline_ranks.size(); ++rank) {
    const int64_t simulated_bytes = searched.prediction.peak_bytes[rank];
    const int64_t closed_form_bytes = searched.plan.pipeline_ranks[rank].peak_bytes;
    GP_CHECK(simulated_bytes <= closed_form_bytes, "pipeline rank {}: simulated {} bytes, closed form {}", rank,
             simulated_bytes, closed_form_bytes);
  }
  PlanResult result;
  result.search = {.method = request.method,
                   .evaluations = found.evaluations,
                   .space_size = found.space_size,
                   .seed = request.job.search.seed,
                   .unproven = found.unproven,
                   .stopped_early = found.stopped_early,
                   .best_so_far_ns = found.best_so_far_ns,
                   .rejected = {}};
  TakePlan({.better = std::move(searched), .evaluations = 0, .stopped_early = false, .rejected = {}}, result);
  PlanRequest same_degrees = request;
  same_degrees.job = JobOfPlan(request.job, result);
  Candidate chosen = candidate;
  Evaluated compared = best;
  GP_RETURN_IF_ERROR(Refine(same_degrees, source, known, result, chosen, compared));
  if (request.baselines) {
    result.baselines = ScheduleBaselines(model, chosen, candidate, space.searches_delta_n(), request.job.search.seed);
  }
  if (request.baselines && request.single_site) {
    std::ranges::move(SingleSiteBaseline(request, source, result), std::back_inserter(result.baselines));
  }
  result.cost_reports = CostReports(same_degrees, source, result.plan);
  NoteMissingBandwidth(request, result.search);
  if (IsMadeByRule(request.job)) {
    return result;  // the comparisons below are about the kind that stood in for the job's
  }
  if (found.other.has_value()) {
    result.search.rejected.push_back(RejectedShape(found.shape, *found.other, best.fitness.iteration_ns));
  }
  for (RejectedAlternative& rejected : NearestRejected(space, compared, found.outcome)) {
    // A searched schedule replaced the genome's, but the alternatives are still the genome's.
    const bool replaced = chosen.schedule != candidate.schedule && !rejected.change.starts_with("schedule ");
    rejected.change = replaced ? fmt::format("{}, {}", ScheduleKindName(candidate.schedule), rejected.change)
                               : std::move(rejected.change);
    result.search.rejected.push_back(std::move(rejected));
  }
  return result;
}

// `better` in place of `result`, with the latter's statements about the whole job.
PlanResult Instead(const PlanRequest& request, PlanResult result, PlanResult better) {
  // Open choices stay open: single sites may have other degrees, and the whole search was one.
  const auto is_of_all = [](const Baseline& each) { return each.scope == BaselineScope::kSingleSite; };
  std::ranges::copy_if(result.baselines, std::back_inserter(better.baselines), is_of_all);
  SearchReport& search = better.search;
  search.evaluations += result.search.evaluations;
  search.space_size = result.search.space_size;
  search.stopped_early |= result.search.stopped_early;
  search.cut_short |= result.search.cut_short;
  search.best_so_far_ns = std::move(result.search.best_so_far_ns);
  search.best_so_far_ns.push_back(better.prediction.iteration_ns);
  NoteMissingBandwidth(request, search);
  const Shape shape = ShapeOfPlan(better.plan);
  const Shape other = ShapeOfPlan(result.plan);
  if (shape.sites != other.sites || shape.tensor != other.tensor || shape.pipeline != other.pipeline ||
      shape.data != other.data) {
    search.rejected.insert(search.rejected.begin(), RejectedShape(shape, {other, result.prediction.iteration_ns, false},
                                                                  better.prediction.iteration_ns));
  }
  return better;
}

// The faster of the two, with the evaluations of both.
PlanResult FasterOf(const PlanRequest& request, PlanResult result, PlanResult other) {
  if (other.prediction.iteration_ns < result.prediction.iteration_ns) {
    return Instead(request, std::move(result), std::move(other));
  }
  result.search.evaluations += other.search.evaluations;
  return result;
}

// `result`, or the plan of other degrees that is faster with a schedule made to measure.
absl::StatusOr<PlanResult> BestOfClose(const PlanRequest& request, const CostSource& source, const ShapeFound& found,
                                       PlanResult result) {
  const int64_t iteration_ns = result.prediction.iteration_ns;
  if (request.method == SearchMethod::kExhaustive) {
    return result;
  }
  GP_ASSIGN_OR_RETURN(const FasterShape faster, FindFasterShape(request, source, found.close, iteration_ns));
  result.search.evaluations += faster.evaluations;
  if (!faster.shape.has_value()) {
    return result;
  }
  PlanRequest pinned = request;
  pinned.single_site = false;
  pinned.job = JobOf(request.job, *faster.shape);
  GP_ASSIGN_OR_RETURN(const ShapeFound there, SearchShapes(pinned, source));
  GP_CHECK(there.space != nullptr || there.stopped_early);
  if (there.space == nullptr) {
    return result;
  }
  // The plan found is final if it was searched as far as the request wants.
  const bool is_refined = !request.refine_fully || faster.effort == RefineEffort::kFull;
  const Refinement* known = is_refined ? &faster.refinement : nullptr;
  GP_ASSIGN_OR_RETURN(PlanResult better, Report(pinned, source, there, known));
  if (known == nullptr &&
      faster.refinement.better->prediction.prediction.iteration_ns < better.prediction.iteration_ns) {
    // The refinement's plan has the layers that are best with another mode.
    GP_ASSIGN_OR_RETURN(better, Report(pinned, source, there, &faster.refinement));
  }
  return FasterOf(request, std::move(result), std::move(better));
}

// Reports the grid's plan as if its grid were all that the job asks for.
absl::StatusOr<PlanResult> ReportGrid(const PlanRequest& request, const CostSource& source, Refinement grid) {
  const Shape shape = ShapeOfPlan(grid.better->plan);
  PlanRequest pinned = request;
  pinned.job = JobOf(request.job, shape);
  pinned.site_ranks = shape.ranks;
  if (!grid.better->plan.SameRecompute().has_value()) {
    pinned.rank_recompute = RecomputeOfRanks(grid.better->plan);
    pinned.job.parallelism.recompute = pinned.rank_recompute.front();
  }
  absl::StatusOr<ShapeFound> there = SearchShapes(pinned, source);
  if (there.ok() && there->space != nullptr) {
    return Report(pinned, source, *there, &grid);
  }
  // No schedule by rule fits there with which to compare.
  PlanResult result;
  result.search.method = request.method;
  result.search.seed = request.job.search.seed;
  TakePlan(std::move(grid), result);
  result.search.best_so_far_ns.push_back(result.prediction.iteration_ns);
  result.cost_reports = CostReports(pinned, source, result.plan);
  if (request.baselines) {
    result.baselines = SingleSiteBaseline(request, source, result);
  }
  return result;
}

// `result`, or a faster plan of any grid, if there are few.
absl::StatusOr<PlanResult> BestOfGrids(const PlanRequest& request, const CostSource& source, PlanResult result) {
  const int64_t known_ns = std::min(result.prediction.iteration_ns, request.beat_ns);
  GP_ASSIGN_OR_RETURN(Refinement grid, SearchGrids(request, source, known_ns));
  result.search.stopped_early |= grid.stopped_early;
  result.search.cut_short = grid.cut_short;
  if (!grid.better.has_value()) {
    result.search.evaluations += grid.evaluations;
    return result;
  }
  GP_ASSIGN_OR_RETURN(PlanResult better, ReportGrid(request, source, std::move(grid)));
  return Instead(request, std::move(result), std::move(better));
}

// `result`, or a plan at its shape whose ranks recompute differently.
absl::StatusOr<PlanResult> BestOfMixed(const PlanRequest& request, const CostSource& source, PlanResult result) {
  GP_ASSIGN_OR_RETURN(Refinement mixed, MixRecompute(request, source, result));
  result.search.stopped_early |= mixed.stopped_early;
  if (!mixed.better.has_value()) {
    result.search.evaluations += mixed.evaluations;
    return result;
  }
  GP_ASSIGN_OR_RETURN(PlanResult better, ReportGrid(request, source, std::move(mixed)));
  return Instead(request, std::move(result), std::move(better));
}

// `unmixed`, or a faster plan whose ranks recompute differently, at its degrees or at others.
absl::StatusOr<PlanResult> BestOfCloseMixed(const PlanRequest& request, const CostSource& source,
                                            const ShapeFound& found, PlanResult unmixed) {
  GP_ASSIGN_OR_RETURN(PlanResult result, BestOfMixed(request, source, std::move(unmixed)));
  std::vector<Shape> others{found.shape};
  std::ranges::copy(found.close, std::back_inserter(others));
  Shape own = ShapeOfPlan(result.plan);
  own.ranks.clear();
  std::erase(others, own);
  GP_ASSIGN_OR_RETURN(const Refinement mixed, MixRecomputeAt(request, source, others, result.prediction.iteration_ns));
  result.search.evaluations += mixed.evaluations;
  result.search.stopped_early |= mixed.stopped_early;
  if (!mixed.better.has_value()) {
    return result;
  }
  PlanRequest pinned = request;
  pinned.single_site = false;
  pinned.job = JobOf(request.job, ShapeOfPlan(mixed.better->plan));
  GP_ASSIGN_OR_RETURN(const ShapeFound there, SearchShapes(pinned, source));
  if (there.space == nullptr) {
    return result;
  }
  GP_ASSIGN_OR_RETURN(PlanResult pure, Report(pinned, source, there, nullptr));
  GP_ASSIGN_OR_RETURN(PlanResult better, BestOfMixed(pinned, source, std::move(pure)));
  return FasterOf(request, std::move(result), std::move(better));
}

// `progress` for all searches for one plan: evaluations never fall where a search begins anew, and the best never
// rises.
std::function<void(int64_t, int64_t)> Steady(std::function<void(int64_t, int64_t)> progress) {
  struct Told {
    int64_t evaluations = 0;
    int64_t best_ns = 0;
  };
  if (!progress) {
    return {};
  }
  return [progress = std::move(progress), told = std::make_shared<Told>()](int64_t evaluations, int64_t best_ns) {
    told->evaluations = std::max(told->evaluations, evaluations);
    if (told->best_ns == 0 || (best_ns != 0 && best_ns < told->best_ns)) {
      told->best_ns = best_ns;
    }
    progress(told->evaluations, told->best_ns);
  };
}

void TellProgress(const PlanRequest& request, const absl::StatusOr<PlanResult>& result) {
  if (request.progress && result.ok()) {
    request.progress(result->search.evaluations, result->prediction.iteration_ns);
  }
}

// `result`, or with another schedule for the same stages.
absl::StatusOr<PlanResult> Polished(const PlanRequest& request, const CostSource& source, PlanResult result) {
  PlanRequest same = request;
  same.job = JobOfPlan(request.job, result);
  GP_ASSIGN_OR_RETURN(Refinement polished, PolishSchedule(same, source, result.plan, result.prediction.iteration_ns));
  if (!polished.better.has_value()) {
    result.search.evaluations += polished.evaluations;
    result.search.stopped_early |= polished.stopped_early;
    return result;
  }
  TakePlan(std::move(polished), result);
  result.search.best_so_far_ns.push_back(result.prediction.iteration_ns);
  return result;
}

// `result`, or a faster plan at fewer of the job's sites.
absl::StatusOr<PlanResult> BestOfFewerSites(const PlanRequest& request, const CostSource& source, PlanResult result) {
  const auto take = [&](PlanResult there) {
    result = FasterOf(request, std::move(result), std::move(there));
    return result.prediction.iteration_ns;
  };
  PlanAtFewerSites(request, source, {result.prediction.iteration_ns, result.search.cut_short}, take);
  return result;
}

// `result`, or with search.prefer memory the plan that takes least of it; says what the other takes.
absl::StatusOr<PlanResult> Weighed(const PlanRequest& request, const CostSource& source, PlanResult result) {
  const bool prefers_memory = request.job.search.prefer == Prefer::kMemory;
  if (!prefers_memory && !request.weigh_memory) {
    return result;
  }
  GP_ASSIGN_OR_RETURN(Refinement frugal, FindFrugalPlan(request, source, result));
  result.search.stopped_early |= frugal.stopped_early;
  if (!frugal.better.has_value()) {
    result.search.evaluations += frugal.evaluations;
    return result;
  }
  const TimeAndMemory fast{result.prediction.iteration_ns, FullestDeviceBytes(result.plan)};
  if (!prefers_memory) {
    result.traded =
        TimeAndMemory{frugal.better->prediction.prediction.iteration_ns, FullestDeviceBytes(frugal.better->plan)};
    result.search.evaluations += frugal.evaluations;
    return result;
  }
  GP_ASSIGN_OR_RETURN(PlanResult better, ReportGrid(request, source, std::move(frugal)));
  better = Instead(request, std::move(result), std::move(better));
  better.traded = fast;
  return better;
}

// The search by genome found no plan that fits, or none of the job's kind, for which another stands in there, as
// `status` says; another grid, another schedule or fewer sites may fit.
absl::StatusOr<PlanResult> FirstOfOthers(const PlanRequest& request, const CostSource& source, absl::Status status) {
  GP_ASSIGN_OR_RETURN(Refinement grid, SearchGrids(request, source, kNever));
  if (grid.better.has_value()) {
    return ReportGrid(request, source, std::move(grid));
  }
  absl::StatusOr<PlanResult> best = std::move(status);
  PlanAtFewerSites(request, source, {kNever, grid.cut_short}, [&](PlanResult there) {
    if (!best.ok() || there.prediction.iteration_ns < best->prediction.iteration_ns) {
      best = std::move(there);
    }
    return best->prediction.iteration_ns;
  });
  return best;
}

absl::StatusOr<PlanResult> PlanWithModel(PlanRequest request) {
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  GP_RETURN_IF_ERROR(ValidateJob(request.job));
  GP_RETURN_IF_ERROR(ValidateCluster(request.cluster));
  if (IsMadeByRule(request.job) && request.method == SearchMethod::kExhaustive) {
    return absl::InvalidArgumentError(fmt::format("--search exhaustive proves {}; leave it out for schedule {}",
                                                  ScheduleNames(&ScheduleRow::searched),
                                                  ScheduleKindName(request.job.search.schedule)));
  }
  const CostSource source(request.job, request.cluster, request.profile.has_value() ? &*request.profile : nullptr);
  if (request.schedule.has_value()) {
    GP_ASSIGN_OR_RETURN(PlanResult result, PlanGivenSchedule(request, source));
    result.cost_reports = CostReports(request, source, result.plan);
    return result;
  }
  GP_ASSIGN_OR_RETURN(const ShapeFound found, SearchShapes(request, source));
  if (found.space == nullptr && found.stopped_early) {
    return absl::DeadlineExceededError(
        fmt::format("the search was stopped after {} evaluations, before it found a plan that fits; raise "
                    "search.time_budget, or leave fewer choices open",
                    found.evaluations));
  }
  absl::StatusOr<PlanResult> reported = found.space != nullptr
                                            ? Report(request, source, found, nullptr)
                                            : absl::StatusOr<PlanResult>(Infeasible(request, found.most_frugal));
  const bool has_none = absl::IsFailedPrecondition(reported.status()) || absl::IsInvalidArgument(reported.status());
  if (has_none) {
    reported = FirstOfOthers(request, source, reported.status());
  } else if (reported.ok()) {
    for (const auto step : {BestOfClose, BestOfCloseMixed}) {
      TellProgress(request, reported);
      if (reported.ok()) {
        reported = step(request, source, found, *std::move(reported));
      }
    }
    for (const auto step : {BestOfGrids, Polished, BestOfFewerSites, Weighed}) {
      TellProgress(request, reported);
      if (reported.ok()) {
        reported = step(request, source, *std::move(reported));
      }
    }
  }
  GP_ASSIGN_OR_RETURN(PlanResult result, std::move(reported));
  // A clock that has ended a step never goes back.
  result.search.stopped_early |= request.should_stop && request.should_stop();
  if (request.cluster_bound) {
    result.cluster_bound_ns = ClusterBoundNs(request, source, result.prediction.iteration_ns);
  }
  if (result.search.stopped_early) {
    result.warnings.push_back(fmt::format(
        "the search was stopped by search.time_budget, {}, so the same seed may give another plan on a machine that is "
        "less busy; raise it to be sure",
        HumanDuration(request.job.search.time_budget_ns)));
  }
  if (request.job.parallelism.zero_stage.has_value()) {  // else the planner has weighed it
    if (std::optional<std::string> warning = ShardingWarning(request.job, request.cluster, source, result)) {
      result.warnings.push_back(*std::move(warning));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlanRequest& asked) {
  PlanRequest request = asked;
  request.progress = Steady(asked.progress);
  absl::StatusOr<PlanResult> result = request.costs.has_value() ? PlanWithGivenCosts(request) : PlanWithModel(request);
  if (result.ok() && !request.costs.has_value()) {
    // The search does not weigh it: of its choices, degrees and ZeRO stage alone change the states that hosts have.
    const JobSpec job = JobOnCluster(JobOfPlan(request.job, *result), request.cluster);
    GP_RETURN_IF_ERROR(CheckHostMemory(job, request.cluster, result->plan, InFlightOfSchedule(result->schedule)));
  }
  TellProgress(request, result);
  return result;
}

}  // namespace geopipe
