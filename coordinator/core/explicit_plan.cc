#include "coordinator/core/explicit_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/epilogue.h"
#include "optimizer/model/message_overhead.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/refine_schedule.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/scheduler/auto_schedule.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

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

int32_t Crossings(const PipelineCosts& costs) {
  return static_cast<int32_t>(std::ranges::count(costs.boundaries, true, &BoundaryCost::crosses));
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

// Stages on sites in placement order, on a site's nodes and devices in order.
absl::StatusOr<Plan> PlaceExplicitStages(const JobSpec& job, const PipelineCosts& costs, const ClusterSpec& cluster) {
  Plan plan;
  const std::vector<int32_t> stages_per_site = StagesPerSite(costs);
  const std::vector<LayerRange> layers = LayersOfStages(job.model, costs.shape.devices);
  for (size_t i = 0; i < stages_per_site.size(); ++i) {
    const SiteSpec* site = cluster.FindSite(job.placement.sites[i]);
    GP_CHECK(site != nullptr, "site {} was allocated", job.placement.sites[i]);
    const int64_t devices = site->nodes * site->devices_per_node;
    if (stages_per_site[i] > devices) {
      return absl::FailedPreconditionError(fmt::format(
          "the explicit costs put {} stages on site {}, which has {} devices; add devices or move the crossing",
          stages_per_site[i], site->name, devices));
    }
    for (int32_t slot = 0; slot < stages_per_site[i]; ++slot) {
      const size_t index = plan.stages.size();
      plan.Append({.site = site->name,
                   .capacity_bytes =
                       costs.memory.has_value() ? costs.memory->capacity_bytes[index] : site->device.memory_bytes},
                  layers[index], static_cast<int32_t>(slot / site->devices_per_node),
                  static_cast<int32_t>(slot % site->devices_per_node));
    }
  }
  return plan;
}

// Timed by the search for schedule auto: seconds at most.
constexpr int64_t kAutoActions = 60'000'000;

struct Candidate {
  std::vector<int32_t> delta_n;  // per crossing
  Schedule schedule = {};        // lowered
  SimulationResult simulated = {};
};

absl::StatusOr<Candidate> Evaluate(ScheduleKind kind, const PipelineCosts& costs, std::vector<int32_t> delta_n) {
  std::vector<int32_t> per_boundary;
  size_t crossing = 0;
  for (const BoundaryCost& boundary : costs.boundaries) {
    per_boundary.push_back(boundary.crosses ? delta_n[crossing++] : 0);
  }
  Candidate candidate{.delta_n = std::move(delta_n)};
  GP_ASSIGN_OR_RETURN(const Schedule compute, MakeSchedule(kind, costs.shape, per_boundary, ScheduleCostsOf(costs)));
  GP_ASSIGN_OR_RETURN(candidate.schedule, Lower(compute));
  GP_ASSIGN_OR_RETURN(candidate.simulated, Simulate(candidate.schedule, costs));
  return candidate;
}

// A schedule made to measure; what it needs of ΔN is what it uses.
absl::StatusOr<Candidate> MadeToMeasure(const PipelineCosts& costs, const JobSpec& job, int64_t* evaluations) {
  const AutoOptions options{.seed = job.search.seed, .evaluations = EvaluationsWithin(costs, kAutoActions)};
  GP_ASSIGN_OR_RETURN(const AutoSchedule found, FindSchedule(costs, options));
  *evaluations += found.evaluations;
  Candidate candidate{.delta_n = EquivalentDeltaN(found.schedule, costs)};
  GP_ASSIGN_OR_RETURN(candidate.schedule, Lower(found.schedule));
  GP_ASSIGN_OR_RETURN(candidate.simulated, Simulate(candidate.schedule, costs));
  return candidate;
}

absl::Status DoesNotFit(const SimulationResult& simulated, const PipelineCosts& costs) {
  size_t worst = 0;
  for (size_t d = 0; d < simulated.peak_bytes.size(); ++d) {
    const int64_t excess = simulated.peak_bytes[d] - costs.memory->capacity_bytes[d];
    if (excess > simulated.peak_bytes[worst] - costs.memory->capacity_bytes[worst]) {
      worst = d;
    }
  }
  return absl::FailedPreconditionError(
      fmt::format("stage {} needs {} bytes of {}; give the case more memory.capacity_bytes, fewer micro-batches in "
                  "flight (a smaller ΔN) or smaller activations",
                  worst, simulated.peak_bytes[worst], costs.memory->capacity_bytes[worst]));
}

// The given ΔN, or the best of the equal ones. `evaluations` counts simulations.
absl::StatusOr<Candidate> ChooseDeltaN(ScheduleKind kind, const PipelineCosts& costs, const JobSpec& job,
                                       const RunOptions& run, int64_t* evaluations) {
  if (kind == ScheduleKind::kAuto) {
    return MadeToMeasure(costs, job, evaluations);
  }
  const size_t crossings = Crossings(costs);
  std::vector<std::vector<int32_t>> choices;
  if (!RowOf(kind).uses_delta_n) {
    choices.emplace_back(crossings, 0);
  } else if (run.delta_n.size() == 1) {
    choices.emplace_back(crossings, run.delta_n.front());
  } else if (!run.delta_n.empty()) {
    choices.push_back(run.delta_n);
  } else {
    for (int32_t delta_n = 0; delta_n <= (crossings == 0 ? 0 : job.search.max_delta_n); ++delta_n) {
      choices.emplace_back(crossings, delta_n);
    }
  }
  std::optional<Candidate> best;
  absl::Status misfit;
  for (std::vector<int32_t>& choice : choices) {
    GP_ASSIGN_OR_RETURN(Candidate candidate, Evaluate(kind, costs, std::move(choice)));
    ++*evaluations;
    if (!candidate.simulated.fits) {
      misfit.Update(DoesNotFit(candidate.simulated, costs));
      continue;
    }
    if (!best.has_value() || candidate.simulated.iteration_ns < best->simulated.iteration_ns) {
      best = std::move(candidate);
    }
  }
  if (!best.has_value()) {
    return misfit;
  }
  return *std::move(best);
}

absl::StatusOr<std::vector<Baseline>> Baselines(const PipelineCosts& costs, const Plan& plan) {
  std::vector<Baseline> baselines;
  constexpr std::pair<ScheduleKind, CommMode> kKinds[] = {{ScheduleKind::kOneFOneB, CommMode::kBlocking},
                                                          {ScheduleKind::kOneFOneB, CommMode::kNonBlocking},
                                                          {ScheduleKind::kGpipe, CommMode::kNonBlocking}};
  PipelineCosts variant = costs;
  for (const auto& [kind, comm] : kKinds) {
    variant.comm = comm;
    GP_ASSIGN_OR_RETURN(const Candidate candidate, Evaluate(kind, variant, std::vector<int32_t>(Crossings(costs), 0)));
    baselines.push_back({.schedule = std::string(ScheduleKindName(kind)),
                         .comm = std::string(CommModeName(comm)),
                         .scope = "same",
                         .site = {},
                         .micro_batch_size = plan.micro_batch_size,
                         .sequence_length = plan.sequence_length,
                         .iteration_ns = candidate.simulated.iteration_ns,
                         .bubble_ratio = candidate.simulated.bubble_ratio,
                         .fits = candidate.simulated.fits});
  }
  return baselines;
}

Prediction Predict(const PipelineCosts& costs, const Plan& plan, const SimulationResult& simulated) {
  Prediction prediction{.iteration_ns = simulated.iteration_ns,
                        .bubble_ratio = simulated.bubble_ratio,
                        .lower_bound_ns = MemoryLowerBoundNs(costs).value_or(LowerBoundNs(costs))};
  const double tokens = static_cast<double>(plan.micro_batch_size * plan.sequence_length) * plan.micro_batches;
  if (simulated.iteration_ns > 0) {
    prediction.tokens_per_s = tokens * 1e9 / static_cast<double>(simulated.iteration_ns);
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    prediction.wan_bytes_per_iteration += boundary.crosses ? 2 * boundary.message_bytes * plan.micro_batches : 0;
  }
  return prediction;
}

// What the exchange of norm terms adds to a real run's iteration. They take the way along the pipeline, or one as long.
int64_t NormNs(const JobSpec& job, const RunOptions& run, const PipelineCosts& costs) {
  if (run.backend == BackendKind::kModelled || !job.training.grad_clip.has_value()) {
    return 0;
  }
  const size_t stages = costs.boundaries.size() + 1;
  std::vector<int64_t> way_ns(stages, 0);  // from stage 0
  for (size_t stage = 1; stage < stages; ++stage) {
    way_ns[stage] =
        way_ns[stage - 1] + costs.boundaries[stage - 1].latency_ns + costs.boundaries[stage - 1].overhead_ns;
  }
  EpilogueParts parts{.update_ns = std::vector<int64_t>(stages, 0), .clips = true, .latencies_ns = {}};
  for (const int64_t from_ns : way_ns) {
    std::vector<int64_t>& row = parts.latencies_ns.emplace_back();
    for (const int64_t to_ns : way_ns) {
      row.push_back(std::abs(to_ns - from_ns));
    }
  }
  return EpilogueNs(costs, parts);
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

namespace {

// A real run sends what its model makes, whatever the costs say.
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

}  // namespace

absl::Status CheckExplicitCosts(const JobSpec& job, const RunOptions& run) {
  const PipelineCosts& costs = *run.explicit_costs;
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  if (costs.shape != PipelineShape::Linear(costs.shape.devices, costs.shape.micro_batches)) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} chunks on {} devices; a run needs one chunk per device in device order",
                    costs.shape.chunks, costs.shape.devices));
  }
  const size_t sites = Crossings(costs) + size_t{1};
  if (job.placement.sites.size() != sites) {
    return absl::InvalidArgumentError(
        fmt::format("the explicit costs have {} crossings and so need {} sites, but placement.sites lists {}; list one "
                    "site for each run of stages between crossings",
                    sites - 1, sites, job.placement.sites.size()));
  }
  if (run.delta_n.size() > 1 && run.delta_n.size() != sites - 1) {
    return absl::InvalidArgumentError(fmt::format(
        "delta_n has {} numbers for {} crossings; give one for each, or one for all", run.delta_n.size(), sites - 1));
  }
  if (run.backend == BackendKind::kModelled) {
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

absl::StatusOr<PlanResult> MakeExplicitPlan(const JobSpec& job, const RunOptions& run, const ClusterSpec& cluster,
                                            const Profile* profile) {
  PlanResult result;
  result.costs = *run.explicit_costs;
  result.costs.comm = run.comm;
  size_t site = 0;
  for (BoundaryCost& boundary : result.costs.boundaries) {
    const std::string& below = job.placement.sites[site];
    site += boundary.crosses ? 1 : 0;
    AddMessageOverhead(profile, cluster, below, job.placement.sites[site], run.comm, boundary);
  }
  result.costs.epilogue_ns += NormNs(job, run, result.costs);
  GP_ASSIGN_OR_RETURN(result.plan, PlaceExplicitStages(job, result.costs, cluster));
  Plan& plan = result.plan;
  plan.schedule =
      run.schedule.value_or(job.search.schedule == ScheduleKind::kAuto ? ScheduleKind::kGeoPipe : job.search.schedule);
  plan.comm = run.comm;
  plan.micro_batches = result.costs.shape.micro_batches;
  const BatchShape batch =
      MatchingBatch(job, plan.micro_batches)
          .value_or(BatchShape{job.search.micro_batch_size.front(), job.search.sequence_length.front()});
  plan.micro_batch_size = batch.micro_batch_size;
  plan.sequence_length = batch.sequence_length;
  plan.recompute = Recompute::kNone;

  GP_ASSIGN_OR_RETURN(Candidate best, ChooseDeltaN(plan.schedule, result.costs, job, run, &result.search.evaluations));
  plan.delta_n = std::move(best.delta_n);
  for (size_t d = 0; d < best.simulated.peak_bytes.size(); ++d) {
    plan.pipeline_ranks[d].peak_bytes = best.simulated.peak_bytes[d];
  }
  result.schedule = std::move(best.schedule);
  result.prediction = Predict(result.costs, plan, best.simulated);
  result.search.method = SearchMethod::kExhaustive;
  result.search.space_size = result.search.evaluations;
  result.search.seed = job.search.seed;
  GP_ASSIGN_OR_RETURN(result.baselines, Baselines(result.costs, plan));
  return result;
}

}  // namespace geopipe
