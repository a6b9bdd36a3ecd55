#include "optimizer/plan/given_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/epilogue.h"
#include "optimizer/model/message_overhead.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/prediction.h"
#include "optimizer/plan/refine_schedule.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/scheduler/auto_schedule.h"

namespace geopipe {
namespace {

// Timed by the search for schedule auto: seconds at most.
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

// A run that computes sends what its model makes, whatever the costs say.
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

// What the exchange of norm terms adds to an iteration. They take the way along the pipeline, or one as long.
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

// The given costs with what messages cost besides their link, and what the norm's exchange adds.
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

absl::StatusOr<PlanPrediction> PredictByRule(const Plan& plan, PipelineCosts costs) {
  costs.comm = plan.comm;
  GP_ASSIGN_OR_RETURN(const Schedule compute,
                      MakeSchedule(plan.schedule, costs.shape, BoundaryDeltaN(plan), ScheduleCostsOf(costs)));
  return PredictGiven(plan, std::move(costs), compute);
}

absl::Status DoesNotFit(const PlanPrediction& predicted) {
  const std::vector<int64_t>& capacity_bytes = predicted.costs.memory->capacity_bytes;
  size_t worst = 0;
  for (size_t d = 1; d < capacity_bytes.size(); ++d) {
    if (predicted.peak_bytes[d] - capacity_bytes[d] > predicted.peak_bytes[worst] - capacity_bytes[worst]) {
      worst = d;
    }
  }
  return absl::FailedPreconditionError(
      fmt::format("stage {} needs {} bytes of {}; give the case more memory.capacity_bytes, fewer micro-batches in "
                  "flight (a smaller ΔN) or smaller activations",
                  worst, predicted.peak_bytes[worst], capacity_bytes[worst]));
}

// The plan's schedule made to measure; what it needs of ΔN is what it uses.
absl::StatusOr<PlanPrediction> MadeToMeasure(const PlanRequest& request, const PipelineCosts& costs,
                                             PlanResult& result) {
  const AutoOptions options{.seed = request.job.search.seed,
                            .evaluations = EvaluationsWithin(costs, kAutoActions),
                            .stop = request.should_stop};
  GP_ASSIGN_OR_RETURN(const AutoSchedule found, FindSchedule(costs, options));
  result.search.evaluations = found.evaluations;
  result.search.stopped_early = found.stopped;
  result.plan.delta_n = EquivalentDeltaN(found.schedule, costs);
  return PredictGiven(result.plan, costs, found.schedule);
}

// The fixed ΔN, or the best of the equal ones.
absl::StatusOr<PlanPrediction> ChooseDeltaN(const PlanRequest& request, const PipelineCosts& costs,
                                            PlanResult& result) {
  const SearchSpec& search = request.job.search;
  const size_t crossings = Crossings(costs);
  std::vector<std::vector<int32_t>> choices;
  if (!RowOf(result.plan.schedule).uses_delta_n || crossings == 0) {
    choices.emplace_back(crossings, 0);
  } else if (request.fixed_delta_n.size() > 1) {
    choices.push_back(request.fixed_delta_n);
  } else if (!request.fixed_delta_n.empty()) {
    choices.emplace_back(crossings, request.fixed_delta_n.front());
  } else {
    for (int32_t delta_n = 0; delta_n <= search.max_delta_n && delta_n < search.max_evaluations; ++delta_n) {
      choices.emplace_back(crossings, delta_n);
    }
  }
  result.search.space_size = std::ssize(choices);
  std::optional<PlanPrediction> best;
  absl::Status misfit;
  Plan plan = result.plan;
  for (std::vector<int32_t>& choice : choices) {
    if (request.should_stop && request.should_stop()) {
      result.search.stopped_early = true;
      break;
    }
    plan.delta_n = std::move(choice);
    GP_ASSIGN_OR_RETURN(PlanPrediction predicted, PredictByRule(plan, costs));
    ++result.search.evaluations;
    if (!predicted.fits) {
      misfit.Update(DoesNotFit(predicted));
    } else if (!best.has_value() || predicted.prediction.iteration_ns < best->prediction.iteration_ns) {
      best = std::move(predicted);
      result.plan.delta_n = plan.delta_n;
    }
  }
  if (best.has_value()) {
    return *std::move(best);
  }
  return misfit.ok() ? absl::DeadlineExceededError(
                           "the search was stopped before it tried any ΔN; raise "
                           "search.time_budget")
                     : misfit;
}

absl::StatusOr<std::vector<Baseline>> Baselines(Plan plan, const PipelineCosts& costs) {
  constexpr std::pair<ScheduleKind, CommMode> kKinds[] = {{ScheduleKind::kOneFOneB, CommMode::kBlocking},
                                                          {ScheduleKind::kOneFOneB, CommMode::kNonBlocking},
                                                          {ScheduleKind::kGpipe, CommMode::kNonBlocking}};
  std::vector<Baseline> baselines;
  std::ranges::fill(plan.delta_n, 0);
  for (const auto& [kind, comm] : kKinds) {
    plan.schedule = kind;
    plan.comm = comm;
    GP_ASSIGN_OR_RETURN(const PlanPrediction predicted, PredictByRule(plan, costs));
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
        fmt::format("the explicit costs have {} chunks on {} devices; a run needs one chunk per device in device order",
                    costs.shape.chunks, costs.shape.devices));
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
  const PipelineCosts costs = CompleteCosts(request);
  const int32_t micro_batches = costs.shape.micro_batches;
  const BatchShape batch =
      MatchingBatch(job, micro_batches)
          .value_or(BatchShape{job.search.micro_batch_size.front(), job.search.sequence_length.front()});
  PlanResult result;
  GP_ASSIGN_OR_RETURN(result.plan, Place(job, request.cluster, costs));
  result.plan.schedule = job.search.schedule;
  result.plan.comm = request.comm;
  result.plan.micro_batch_size = batch.micro_batch_size;
  result.plan.sequence_length = batch.sequence_length;
  result.plan.micro_batches = micro_batches;
  result.search.method = SearchMethod::kExhaustive;
  result.search.seed = job.search.seed;
  const auto search = result.plan.schedule == ScheduleKind::kAuto ? MadeToMeasure : ChooseDeltaN;
  GP_ASSIGN_OR_RETURN(PlanPrediction predicted, search(request, costs, result));
  for (size_t stage = 0; stage < predicted.peak_bytes.size(); ++stage) {
    result.plan.pipeline_ranks[stage].peak_bytes = predicted.peak_bytes[stage];
  }
  result.prediction = predicted.prediction;
  result.costs = std::move(predicted.costs);
  result.schedule = std::move(predicted.schedule);
  GP_ASSIGN_OR_RETURN(result.baselines, Baselines(result.plan, result.costs));
  return result;
}

}  // namespace geopipe
