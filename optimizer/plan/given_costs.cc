#include "optimizer/plan/given_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/plan/epilogue.h"
#include "optimizer/model/plan/message_overhead.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/refine/refine_schedule.h"
#include "optimizer/plan/refine/rule_plan.h"
#include "optimizer/plan/refine/schedule_points.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/scheduler/auto_schedule.h"

namespace geopipe {
namespace {

// Actions that the search for schedule auto times: seconds at most.
constexpr int64_t kAutoActions = 60'000'000;

struct BatchShape {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
};

// The first (b, s) of the job that makes exactly the costs' micro-batches of an iteration's tokens.
std::optional<BatchShape> MatchingBatch(const JobSpec& job, int64_t micro_batches) {
  for (const int64_t s : job.search.sequence_length) {
    for (const int64_t b : job.search.micro_batch_size) {
      if (b * s * micro_batches == job.training.tokens_per_iteration) {
        return BatchShape{b, s};
      }
    }
  }
  return std::nullopt;
}

size_t Crossings(const PipelineCosts& costs) {
  return static_cast<size_t>(std::ranges::count(costs.boundaries, true, &BoundaryCost::crosses));
}

// Checks the messages: a run that computes sends those of its model, whatever the costs say.
absl::Status CheckMessageBytes(const JobSpec& job, const PipelineCosts& costs, const BatchShape& batch) {
  const int64_t bytes = BoundaryMessageBytes(
      job.model, MakeExecutionConfig(job, batch.micro_batch_size, batch.sequence_length, Recompute::kNone));
  for (size_t i = 0; i < costs.boundaries.size(); ++i) {
    const BoundaryCost& boundary = costs.boundaries[i];
    if (boundary.crosses && boundary.serialization_ns > 0 && boundary.message_bytes != bytes) {
      return absl::InvalidArgumentError(fmt::format(
          "the explicit costs send {} bytes over boundary {}, but a micro-batch of this job ({} x {} tokens) "
          "makes messages of {}; set message_bytes to {} or use the modelled backend",
          boundary.message_bytes, i, batch.micro_batch_size, batch.sequence_length, bytes, bytes));
    }
  }
  return absl::OkStatus();
}

// A layer range for each stage. A modelled run computes nothing, so there may be more stages than layers; the stages
// past the last layer are then empty.
std::vector<LayerRange> LayersOfStages(const ModelSpec& model, int64_t stages) {
  if (stages <= model.num_hidden_layers) {
    return SplitLayers(model, stages);
  }
  std::vector<LayerRange> ranges;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t first = std::min(stage, model.num_hidden_layers);
    ranges.push_back({.first = first, .last = stage < model.num_hidden_layers ? first : first - 1});
  }
  ranges.front().has_embedding = true;
  ranges.back().has_head = true;
  return ranges;
}

// The costs' stages on the job's sites.
absl::StatusOr<Plan> Place(const JobSpec& job, const ClusterSpec& cluster, const PipelineCosts& costs) {
  Plan plan;
  const std::vector<int32_t> shares = StagesPerSite(costs);
  const std::vector<LayerRange> layers = LayersOfStages(job.model, costs.shape.devices);
  for (size_t i = 0; i < shares.size(); ++i) {
    const SiteSpec* site = cluster.FindSite(job.placement.sites[i]);
    GP_CHECK(site != nullptr, "site {} was allocated", job.placement.sites[i]);
    const int64_t devices = site->nodes * site->devices_per_node;
    if (shares[i] > devices) {
      return absl::FailedPreconditionError(fmt::format(
          "the explicit costs put {} stages on site {}, which has {} devices; add devices or move the crossing",
          shares[i], site->name, devices));
    }
    PlaceOnSite(*site, shares[i], layers, plan);
  }
  for (size_t rank = 0; costs.memory.has_value() && rank < plan.pipeline_ranks.size(); ++rank) {
    plan.pipeline_ranks[rank].capacity_bytes = costs.memory->capacity_bytes[rank];
  }
  return plan;
}

// Time that the exchange of norm terms adds to an iteration. They take the way along the pipeline, or one as long.
int64_t NormNs(const PipelineCosts& costs) {
  std::vector<int64_t> way_ns{0};  // from stage 0
  for (const BoundaryCost& boundary : costs.boundaries) {
    way_ns.push_back(way_ns.back() + boundary.latency_ns + boundary.overhead_ns);
  }
  EpilogueParts parts{.update_ns = std::vector<int64_t>(way_ns.size(), 0), .clips = true, .latencies_ns = {}};
  for (const int64_t from_ns : way_ns) {
    std::vector<int64_t>& row = parts.latencies_ns.emplace_back();
    for (const int64_t to_ns : way_ns) {
      row.push_back(std::abs(to_ns - from_ns));
    }
  }
  return EpilogueNs(costs, parts);
}

// The given costs, the costs of messages besides their link, and the time of the norm's exchange.
PipelineCosts CompleteCosts(const PlanRequest& request) {
  PipelineCosts costs = *request.costs;
  costs.comm = request.comm;
  auto site = request.job.placement.sites.begin();
  for (BoundaryCost& boundary : costs.boundaries) {
    const std::string& below = *site;
    site += boundary.crosses ? 1 : 0;
    AddMessageOverhead(request.profile.has_value() ? &*request.profile : nullptr, request.cluster, below, *site,
                       costs.comm, boundary);
  }
  if (request.job.training.grad_clip.has_value()) {
    costs.epilogue_ns += NormNs(costs);
  }
  return costs;
}

// The schedule that a search finds; it defines its own ΔN.
absl::StatusOr<Refinement> SearchedSchedule(const PlanRequest& request, SchedulePoint point) {
  const AutoOptions options{.seed = request.job.search.seed,
                            .evaluations = EvaluationsWithin(point.costs, kAutoActions),
                            .stop = request.should_stop};
  GP_ASSIGN_OR_RETURN(const AutoSchedule found, FindSchedule(point.costs, options));
  point.plan.delta_n = EquivalentDeltaN(found.schedule, point.costs);
  GP_ASSIGN_OR_RETURN(PlanPrediction predicted, PredictGiven(point.plan, std::move(point.costs), found.schedule));
  return Refinement{.better = RefinedPlan{std::move(point.plan), std::move(predicted)},
                    .evaluations = found.evaluations,
                    .stopped_early = found.stopped,
                    .rejected = {}};
}

// The fixed ΔN, or equal ones at all crossings.
std::vector<std::vector<int32_t>> DeltaNChoices(const PlanRequest& request, size_t crossings) {
  const SearchSpec& search = request.job.search;
  const std::vector<int32_t>& fixed = request.fixed_delta_n;
  if (!RowOf(search.schedule).uses_delta_n || crossings == 0) {
    return {std::vector<int32_t>(crossings, 0)};
  }
  if (!fixed.empty()) {
    return {fixed.size() > 1 ? fixed : std::vector<int32_t>(crossings, fixed.front())};
  }
  std::vector<std::vector<int32_t>> choices;
  for (int32_t delta_n = 0; delta_n <= MaxDeltaN(request.job) && delta_n < search.max_evaluations; ++delta_n) {
    choices.emplace_back(crossings, delta_n);
  }
  return choices;
}

// The schedule that the request gives, at `point`.
absl::Status TakeGivenSchedule(const Schedule& schedule, SchedulePoint point, PlanResult& result) {
  if (schedule.shape != point.costs.shape) {
    return absl::InvalidArgumentError(
        fmt::format("the schedule is of {} stages on {} devices with {} micro-batches, the explicit costs of {} on {} "
                    "with {}; make them agree",
                    schedule.shape.stages, schedule.shape.devices, schedule.shape.micro_batches,
                    point.costs.shape.stages, point.costs.shape.devices, point.costs.shape.micro_batches));
  }
  point.plan.schedule = ScheduleKind::kCsv;
  point.plan.delta_n = EquivalentDeltaN(schedule, point.costs);
  GP_ASSIGN_OR_RETURN(PlanPrediction predicted, PredictGiven(point.plan, std::move(point.costs), schedule));
  if (!predicted.fits) {
    return absl::FailedPreconditionError(
        "the schedule needs more memory than the explicit costs say there is; have fewer micro-batches in flight");
  }
  result.search.space_size = 1;
  TakePlan({.better = RefinedPlan{std::move(point.plan), std::move(predicted)}, .evaluations = 1, .rejected = {}},
           result);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Baseline>> Baselines(const Plan& plan, const PipelineCosts& costs) {
  constexpr std::pair<ScheduleKind, CommMode> kKinds[] = {{ScheduleKind::kOneFOneB, CommMode::kBlocking},
                                                          {ScheduleKind::kOneFOneB, CommMode::kNonBlocking},
                                                          {ScheduleKind::kGpipe, CommMode::kNonBlocking}};
  std::vector<Baseline> baselines;
  for (const auto& [kind, comm] : kKinds) {
    PipelineCosts given = costs;
    given.comm = comm;
    GP_ASSIGN_OR_RETURN(const Schedule compute, MakeSchedule(kind, costs.shape));
    GP_ASSIGN_OR_RETURN(const PlanPrediction predicted, PredictGiven(plan, std::move(given), compute));
    baselines.push_back({.schedule = kind,
                         .comm = comm,
                         .scope = BaselineScope::kSame,
                         .site = {},
                         .micro_batch_size = plan.micro_batch_size,
                         .sequence_length = plan.sequence_length,
                         .iteration_ns = predicted.prediction.iteration_ns,
                         .bubble_ratio = predicted.prediction.bubble_ratio,
                         .fits = predicted.fits});
  }
  return baselines;
}

}  // namespace

std::vector<int32_t> StagesPerSite(const PipelineCosts& costs) {
  std::vector<int32_t> stages{1};
  for (const BoundaryCost& boundary : costs.boundaries) {
    if (boundary.crosses) {
      stages.push_back(0);
    }
    ++stages.back();
  }
  return stages;
}

absl::Status CheckGivenCosts(const JobSpec& job, const PipelineCosts& costs, const std::vector<int32_t>& fixed_delta_n,
                             bool computes) {
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  if (costs.shape != PipelineShape::Linear(costs.shape.devices, costs.shape.micro_batches)) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} stages on {} devices; a run needs one stage per device in device order",
                    costs.shape.stages, costs.shape.devices));
  }
  if (costs.shape.micro_batches > kMaxMicroBatches) {
    return absl::InvalidArgumentError(fmt::format("the explicit costs have {} micro-batches; a run has at most {}",
                                                  costs.shape.micro_batches, kMaxMicroBatches));
  }
  const size_t sites = Crossings(costs) + 1;
  if (job.placement.sites.size() != sites) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} crossings and so need {} sites, but placement.sites lists {}; list one "
                    "site for each run of stages between crossings",
                    sites - 1, sites, job.placement.sites.size()));
  }
  if (fixed_delta_n.size() > 1 && fixed_delta_n.size() != sites - 1) {
    return absl::InvalidArgumentError(fmt::format(
        "delta_n has {} numbers for {} crossings; give one for each, or one for all", fixed_delta_n.size(), sites - 1));
  }
  if (!computes) {
    return absl::OkStatus();
  }
  if (costs.shape.devices > job.model.num_hidden_layers) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} devices, but model.num_hidden_layers is {} and every stage needs a "
                    "layer; use the modelled backend or a deeper model",
                    costs.shape.devices, job.model.num_hidden_layers));
  }
  const std::optional<BatchShape> batch = MatchingBatch(job, costs.shape.micro_batches);
  if (!batch.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} micro-batches, which no choice of search.micro_batch_size and "
                    "search.sequence_length makes of training.tokens_per_iteration {}; change one of them or use the "
                    "modelled backend",
                    costs.shape.micro_batches, job.training.tokens_per_iteration));
  }
  return CheckMessageBytes(job, costs, *batch);
}

absl::StatusOr<PlanResult> PlanWithGivenCosts(const PlanRequest& request) {
  const JobSpec& job = request.job;
  SchedulePoint point{.plan = {}, .costs = CompleteCosts(request), .delta_n_choices = {}};
  const PipelineShape& shape = point.costs.shape;
  GP_ASSIGN_OR_RETURN(point.plan, Place(job, request.cluster, point.costs));
  const BatchShape batch =
      MatchingBatch(job, shape.micro_batches)
          .value_or(BatchShape{job.search.micro_batch_size.front(), job.search.sequence_length.front()});
  point.plan.schedule = job.search.schedule;
  point.plan.comm = request.comm;
  point.plan.micro_batch_size = batch.micro_batch_size;
  point.plan.sequence_length = batch.sequence_length;
  point.plan.micro_batches = shape.micro_batches;
  point.delta_n_choices = DeltaNChoices(request, Crossings(point.costs));
  PlanResult result;
  result.search.method = SearchMethod::kExhaustive;
  result.search.seed = job.search.seed;
  result.search.space_size = std::ssize(point.delta_n_choices);
  if (request.schedule.has_value()) {
    GP_RETURN_IF_ERROR(TakeGivenSchedule(*request.schedule, std::move(point), result));
    GP_ASSIGN_OR_RETURN(result.baselines, Baselines(result.plan, result.costs));
    return result;
  }
  const auto plan = job.search.schedule == ScheduleKind::kAuto ? SearchedSchedule : PlanByRuleAt;
  GP_ASSIGN_OR_RETURN(Refinement found, plan(request, std::move(point)));
  TakePlan(std::move(found), result);
  GP_ASSIGN_OR_RETURN(result.baselines, Baselines(result.plan, result.costs));
  return result;
}

}  // namespace geopipe
