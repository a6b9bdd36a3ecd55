#include "optimizer/plan/space/plan_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/plan/space/recompute_modes.h"

namespace geopipe {
namespace {

int32_t Size(const auto& choices) { return static_cast<int32_t>(choices.size()); }

}  // namespace

PlanSpace::PlanSpace(const JobSpec& job, CommMode comm, Plan placement)
    : job_(job),
      comm_(comm),
      placement_(std::move(placement)),
      modes_(RecomputeModes(job)),
      crossing_boundaries_(placement_.Crossings()) {
  searches_layers_ =
      job.parallelism.layers == LayerSplit::kAuto && stages() > 1 && job.model.num_hidden_layers > stages();
}

absl::Status PlanSpace::ChooseKinds(const std::vector<int32_t>& fixed_delta_n) {
  const ScheduleKind schedule = job_.search.schedule;
  if (schedule != ScheduleKind::kAuto) {
    kinds_ = {schedule};
  } else if (fixed_delta_n.empty()) {
    // 1f1b is geopipe with ΔN = 0 everywhere.
    kinds_ = {ScheduleKind::kGeoPipe, ScheduleKind::kGpipe};
  } else {
    kinds_ = {ScheduleKind::kGeoPipe};
  }
  if (fixed_delta_n.empty()) {
    return absl::OkStatus();
  }
  if (!RowOf(kinds_.front()).uses_delta_n) {
    return absl::InvalidArgumentError(fmt::format(
        "delta_n is given, but schedule {} has none; use schedule geopipe or auto", ScheduleKindName(schedule)));
  }
  const auto crossings = crossing_boundaries_.size();
  if (fixed_delta_n.size() != 1 && fixed_delta_n.size() != crossings) {
    return absl::InvalidArgumentError(
        fmt::format("delta_n has {} numbers, but the pipeline crosses sites {} times; give one number for all "
                    "crossings or one for each",
                    fixed_delta_n.size(), crossings));
  }
  for (const int32_t delta_n : fixed_delta_n) {
    if (delta_n < 0 || delta_n > 1 << 20) {
      return absl::InvalidArgumentError(fmt::format("delta_n is {}; it must be from 0 to {}", delta_n, 1 << 20));
    }
  }
  searches_delta_n_ = false;
  fixed_delta_n_ =
      fixed_delta_n.size() == crossings ? fixed_delta_n : std::vector<int32_t>(crossings, fixed_delta_n.front());
  return absl::OkStatus();
}

absl::StatusOr<PlanSpace> PlanSpace::Create(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                            CommMode comm, const std::vector<int32_t>& fixed_delta_n, Plan placement) {
  PlanSpace space(job, comm, std::move(placement));
  GP_RETURN_IF_ERROR(space.ChooseKinds(fixed_delta_n));
  for (const Recompute recompute : space.modes_) {
    for (int32_t b = 0; b < Size(job.search.micro_batch_size); ++b) {
      for (int32_t s = 0; s < Size(job.search.sequence_length); ++s) {
        GP_RETURN_IF_ERROR(space.AddPoint(cluster, source, recompute, b, s));
      }
    }
  }
  space.MakeGenes();
  return space;
}

absl::Status PlanSpace::AddPoint(const ClusterSpec& cluster, const CostSource& source, Recompute recompute,
                                 int32_t micro_batch, int32_t sequence) {
  const Plan skeleton = Skeleton(recompute, micro_batch, sequence);
  std::optional<Point>& point = points_.emplace_back();
  if (skeleton.micro_batches == 0) {
    return absl::OkStatus();
  }
  GP_ASSIGN_OR_RETURN(PlanParts parts, PartsOfPlan(job_, cluster, source, skeleton));
  const PlanMemoryModel memory(job_, parts.config, stages());
  std::vector<StageLoad> loads = LoadsOf(parts);
  point.emplace(Point{std::move(parts), memory, std::move(loads), 0});
  const std::vector<int32_t> even = EvenLayers();
  const std::vector<int64_t> in_flight(placement_.stages.size(), 1);  // the bound does not ask for memory
  const PipelineCosts costs = ComposeCosts(point->parts, point->memory, RangesOf(even), in_flight, comm_);
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  point->least_ns = searches_layers_ ? PartialBoundNs(*point, {}) : UnsplitBoundNs(costs);
  return absl::OkStatus();
}

void PlanSpace::MakeGenes() {
  const auto choice = [this](const auto& choices) {
    genome_space_.genes.push_back({.role = GeneRole::kChoice, .least = 0, .greatest = Size(choices) - 1});
  };
  choice(kinds_);
  choice(modes_);
  choice(job_.search.micro_batch_size);
  choice(job_.search.sequence_length);
  GP_CHECK(genome_space_.genes.size() == kChoices);
  if (searches_layers_) {
    const auto most = static_cast<int32_t>(job_.model.num_hidden_layers - stages() + 1);
    for (const int32_t even : EvenLayers()) {
      genome_space_.genes.push_back({.role = GeneRole::kShare, .least = 1, .greatest = most, .rest = even});
    }
    genome_space_.groups = {{.first = kChoices, .count = stages(), .sum = job_.model.num_hidden_layers}};
  }
  uint64_t uses_delta_n = 0;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    uses_delta_n |= uint64_t{RowOf(kinds_[kind]).uses_delta_n ? 1U : 0U} << kind;
  }
  for (int32_t crossing = 0; searches_delta_n_ && crossing < crossings(); ++crossing) {
    genome_space_.genes.push_back({.role = GeneRole::kOrdinal,
                                   .least = 0,
                                   .greatest = job_.search.max_delta_n,
                                   .rest = 0,
                                   .active_for = uses_delta_n});
  }
}

Plan PlanSpace::Skeleton(Recompute recompute, int32_t micro_batch, int32_t sequence) const {
  Plan plan = placement_;
  plan.comm = comm_;
  plan.micro_batch_size = job_.search.micro_batch_size[micro_batch];
  plan.sequence_length = job_.search.sequence_length[sequence];
  plan.delta_n.assign(crossing_boundaries_.size(), 0);
  const int64_t tokens_per_micro_batch =
      plan.micro_batch_size * plan.sequence_length * std::max<int64_t>(1, job_.parallelism.data);
  const int64_t tokens = job_.training.tokens_per_iteration;
  const int64_t count = tokens % tokens_per_micro_batch == 0 ? tokens / tokens_per_micro_batch : 0;
  plan.micro_batches = count <= kMaxMicroBatches ? static_cast<int32_t>(count) : 0;
  plan.recompute = recompute;
  return plan;
}

const std::optional<PlanSpace::Point>& PlanSpace::PointAt(Recompute recompute, int32_t micro_batch,
                                                          int32_t sequence) const {
  const auto mode = static_cast<size_t>(std::find(modes_.begin(), modes_.end(), recompute) - modes_.begin());
  GP_CHECK(mode < modes_.size(), "a recompute mode that the job does not allow");
  return points_[(mode * job_.search.micro_batch_size.size() + micro_batch) * job_.search.sequence_length.size() +
                 sequence];
}

const PlanSpace::Point& PlanSpace::PointOf(const Candidate& candidate) const {
  const std::optional<Point>& point = PointAt(candidate.recompute, candidate.micro_batch, candidate.sequence);
  GP_CHECK(point.has_value());
  return *point;
}

int64_t PlanSpace::size() const {
  GenomeSpace one = genome_space_;
  for (const Choice choice : {kRecompute, kMicroBatch, kSequence}) {
    one.genes[choice].greatest = 0;
  }
  const int64_t points =
      std::count_if(points_.begin(), points_.end(), [](const auto& point) { return point.has_value(); });
  GP_CHECK(points > 0, "ValidateJob requires a b and s that divide the tokens");
  return SaturatingProduct(one.size(), points);
}

Candidate PlanSpace::CandidateOf(const Genome& genome) const {
  Candidate candidate{.schedule = kinds_[genome[kKind]],
                      .comm = comm_,
                      .recompute = modes_[genome[kRecompute]],
                      .micro_batch = genome[kMicroBatch],
                      .sequence = genome[kSequence],
                      .layers = {},
                      .delta_n = fixed_delta_n_};
  const auto first_layer = genome.begin() + kChoices;
  const auto first_delta_n = first_layer + (searches_layers_ ? stages() : 0);
  candidate.layers = searches_layers_ ? std::vector<int32_t>(first_layer, first_delta_n) : EvenLayers();
  if (searches_delta_n_) {
    candidate.delta_n.assign(first_delta_n, genome.end());
  }
  return candidate;
}

Genome PlanSpace::GenomeOf(const Candidate& candidate) const {
  const auto index = [](const auto& choices, auto value) {
    return static_cast<int32_t>(std::find(choices.begin(), choices.end(), value) - choices.begin());
  };
  Genome genome{index(kinds_, candidate.schedule), index(modes_, candidate.recompute), candidate.micro_batch,
                candidate.sequence};
  if (searches_layers_) {
    genome.insert(genome.end(), candidate.layers.begin(), candidate.layers.end());
  }
  if (searches_delta_n_) {
    genome.insert(genome.end(), candidate.delta_n.begin(), candidate.delta_n.end());
  }
  return genome;
}

std::vector<int32_t> PlanSpace::EvenLayers() const { return CountsOf(SplitLayers(job_.model, stages())); }

std::vector<int32_t> PlanSpace::BoundaryDeltaNOf(const Candidate& candidate) const {
  GP_CHECK(candidate.delta_n.size() == crossing_boundaries_.size());
  std::vector<int32_t> boundary_delta_n(placement_.stages.size() - 1, 0);
  for (size_t crossing = 0; crossing < crossing_boundaries_.size(); ++crossing) {
    boundary_delta_n[crossing_boundaries_[crossing]] = candidate.delta_n[crossing];
  }
  return boundary_delta_n;
}

std::vector<int64_t> PlanSpace::InFlightOf(const Candidate& candidate) const {
  return geopipe::InFlightOf(candidate.schedule,
                             PipelineShape::Linear(stages(), PointOf(candidate).parts.micro_batches),
                             BoundaryDeltaNOf(candidate));
}

std::vector<int64_t> PlanSpace::PeakBytes(const Candidate& candidate) const {
  const PlanMemoryModel& memory = PointOf(candidate).memory;
  const std::vector<LayerRange> layers = RangesOf(candidate.layers);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOf(candidate), candidate.comm);
  std::vector<int64_t> peaks;
  for (int32_t stage = 0; stage < stages(); ++stage) {
    peaks.push_back(memory.Needs(stage, layers[stage]).PeakBytes(flows[stage]));
  }
  return peaks;
}

TightestStage PlanSpace::Tightest(const Candidate& candidate) const {
  const std::vector<int64_t> peaks = PeakBytes(candidate);
  TightestStage tightest;
  for (int32_t stage = 0; stage < stages(); ++stage) {
    const int64_t capacity = placement_.pipeline_ranks[stage].capacity_bytes;
    if (stage == 0 || peaks[stage] - capacity > tightest.excess_bytes()) {
      tightest = {.stage = stage, .need_bytes = peaks[stage], .capacity_bytes = capacity};
    }
  }
  return tightest;
}

Plan PlanSpace::PlanOf(const Candidate& candidate) const {
  Plan plan = Skeleton(candidate.recompute, candidate.micro_batch, candidate.sequence);
  plan.schedule = candidate.schedule;
  plan.comm = candidate.comm;
  plan.delta_n = candidate.delta_n;
  const std::vector<int64_t> peaks = PeakBytes(candidate);
  const std::vector<LayerRange> layers = RangesOf(candidate.layers);
  for (size_t stage = 0; stage < peaks.size(); ++stage) {
    plan.stages[stage].layers = layers[stage];
    plan.pipeline_ranks[stage].peak_bytes = peaks[stage];
  }
  return plan;
}

PipelineCosts PlanSpace::CostsOf(const Candidate& candidate) const {
  const Point& point = PointOf(candidate);
  return ComposeCosts(point.parts, point.memory, RangesOf(candidate.layers), InFlightOf(candidate), candidate.comm);
}

}  // namespace geopipe
