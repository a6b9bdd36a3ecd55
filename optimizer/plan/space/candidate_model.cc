#include "optimizer/plan/space/candidate_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxHidingDeltaN = 64;

}  // namespace

CandidateModel::CandidateModel(const JobSpec& job, CommMode comm, Plan placement)
    : job_(job),
      comm_(comm),
      placement_(std::move(placement)),
      modes_(MemoryModes(job)),
      crossing_boundaries_(placement_.Crossings()),
      max_delta_n_(MaxDeltaN(job)) {}

absl::StatusOr<CandidateModel> CandidateModel::Create(const JobSpec& job, const ClusterSpec& cluster,
                                                      const CostSource& source, CommMode comm, Plan placement) {
  CandidateModel model(job, comm, std::move(placement));
  for (const MemoryMode& mode : model.modes_) {
    for (int32_t b = 0; b < std::ssize(job.search.micro_batch_size); ++b) {
      for (int32_t s = 0; s < std::ssize(job.search.sequence_length); ++s) {
        GP_RETURN_IF_ERROR(model.AddPoint(cluster, source, mode, b, s));
      }
    }
  }
  return model;
}

int64_t CandidateModel::HidingDeltaN(const Point& point) const {
  const std::vector<int32_t> layers = EvenLayers();
  int64_t period_ns = 1;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    period_ns = std::max(period_ns, point.loads[stage].fixed_ns + layers[stage] * point.loads[stage].layer_ns);
  }
  int64_t most = 0;
  for (const int32_t boundary : crossing_boundaries_) {
    const BoundaryCost& cost = point.parts.boundaries[boundary];
    most =
        std::max(most, (2 * (cost.latency_ns + cost.serialization_ns + cost.overhead_ns) + period_ns - 1) / period_ns);
  }
  return most;
}

absl::Status CandidateModel::AddPoint(const ClusterSpec& cluster, const CostSource& source, const MemoryMode& mode,
                                      int32_t micro_batch, int32_t sequence) {
  const Plan skeleton = Skeleton(mode, micro_batch, sequence);
  if (skeleton.micro_batches == 0) {
    index_.push_back(-1);
    return absl::OkStatus();
  }
  index_.push_back(static_cast<int32_t>(points_.size()));
  GP_ASSIGN_OR_RETURN(PlanParts parts, PartsOfPlan(job_, cluster, source, skeleton));
  const PlanMemoryModel memory = parts.MemoryModel(job_);
  std::vector<StageLoad> loads = LoadsOf(parts, job_.model.num_hidden_layers);
  Point& point = points_.emplace_back(
      Point{mode, micro_batch, sequence, std::move(parts), memory, std::move(loads), /*least_ns=*/0});
  const std::vector<int64_t> in_flight(placement_.stages.size(), 1);  // the bound does not ask for memory
  const PipelineCosts costs = ComposeCosts(point.parts, point.memory, RangesOf(EvenLayers()), in_flight, comm_);
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  if (!job_.search.max_delta_n.has_value()) {
    max_delta_n_ = std::max(max_delta_n_, static_cast<int32_t>(std::min(HidingDeltaN(point), kMaxHidingDeltaN)));
  }
  point.least_ns = splits_layers() ? PartialBoundNs(point, {}) : UnsplitBoundNs(costs);
  return absl::OkStatus();
}

Plan CandidateModel::Skeleton(const MemoryMode& mode, int32_t micro_batch, int32_t sequence) const {
  Plan plan = placement_;
  plan.comm = comm_;
  plan.micro_batch_size = job_.search.micro_batch_size[micro_batch];
  plan.sequence_length = job_.search.sequence_length[sequence];
  plan.delta_n.assign(crossing_boundaries_.size(), 0);
  plan.micro_batches = MicroBatchesOf(job_, plan.micro_batch_size, plan.sequence_length);
  SetMode(mode, plan);
  return plan;
}

bool CandidateModel::splits_layers() const {
  return job_.parallelism.layers == LayerSplit::kAuto && stages() > 1 && job_.model.num_hidden_layers > stages();
}

std::vector<int32_t> CandidateModel::EvenLayers() const { return CountsOf(SplitLayers(job_.model, stages())); }

const CandidateModel::Point* CandidateModel::FindPoint(const MemoryMode& mode, int32_t micro_batch,
                                                       int32_t sequence) const {
  const auto index = static_cast<size_t>(std::find(modes_.begin(), modes_.end(), mode) - modes_.begin());
  GP_CHECK(index < modes_.size(), "a recompute mode or ZeRO stage that the job does not allow");
  const int32_t point = index_[(index * job_.search.micro_batch_size.size() + static_cast<size_t>(micro_batch)) *
                                   job_.search.sequence_length.size() +
                               static_cast<size_t>(sequence)];
  return point < 0 ? nullptr : &points_[static_cast<size_t>(point)];
}

const CandidateModel::Point& CandidateModel::PointOf(const Candidate& candidate) const {
  const Point* point = FindPoint(candidate.mode, candidate.micro_batch, candidate.sequence);
  GP_CHECK(point != nullptr);
  return *point;
}

std::vector<int32_t> CandidateModel::BoundaryDeltaNOf(const Candidate& candidate) const {
  GP_CHECK(candidate.delta_n.size() == crossing_boundaries_.size());
  std::vector<int32_t> boundary_delta_n(placement_.stages.size() - 1, 0);
  for (size_t crossing = 0; crossing < crossing_boundaries_.size(); ++crossing) {
    boundary_delta_n[crossing_boundaries_[crossing]] = candidate.delta_n[crossing];
  }
  return boundary_delta_n;
}

std::vector<int64_t> CandidateModel::InFlightOf(const Candidate& candidate) const {
  return geopipe::InFlightOf(candidate.schedule, PointOf(candidate).parts.shape, BoundaryDeltaNOf(candidate));
}

std::vector<int64_t> CandidateModel::PeakBytes(const Candidate& candidate) const {
  const PlanMemoryModel& memory = PointOf(candidate).memory;
  const std::vector<LayerRange> layers = RangesOf(candidate.layers);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOf(candidate), candidate.comm);
  std::vector<int64_t> peaks;
  peaks.reserve(stages());
  for (int32_t stage = 0; stage < stages(); ++stage) {
    peaks.push_back(memory.Needs(stage, layers[stage]).PeakBytes(flows[stage]));
  }
  return peaks;
}

TightestStage CandidateModel::Tightest(const Candidate& candidate) const {
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

Plan CandidateModel::PlanOf(const Candidate& candidate) const {
  Plan plan = Skeleton(candidate.mode, candidate.micro_batch, candidate.sequence);
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

PipelineCosts CandidateModel::CostsOf(const Candidate& candidate) const {
  const Point& point = PointOf(candidate);
  return ComposeCosts(point.parts, point.memory, RangesOf(candidate.layers), InFlightOf(candidate), candidate.comm);
}

Schedule CandidateModel::ScheduleOf(const Candidate& candidate) const {
  const PipelineShape& shape = PointOf(candidate).parts.shape;
  absl::StatusOr<Schedule> schedule = MakeSchedule(candidate.schedule, shape, BoundaryDeltaNOf(candidate));
  GP_CHECK(schedule.ok(), "{}", schedule.status().ToString());
  return *std::move(schedule);
}

SimulationResult CandidateModel::Run(const Candidate& candidate) const {
  absl::StatusOr<SimulationResult> result = Simulate(ScheduleOf(candidate), CostsOf(candidate));
  GP_CHECK(result.ok(), "{}", result.status().ToString());
  return *std::move(result);
}

int64_t CandidateModel::BoundNs(const Candidate& candidate) const {
  return ScheduleBoundNs(candidate.schedule, CostsOf(candidate), BoundaryDeltaNOf(candidate));
}

// The bound of UnsplitBoundNs when only the first stages have their layers; the others share the rest in the way that
// is best for the bound.
int64_t CandidateModel::PartialBoundNs(const Point& point, std::span<const int32_t> layers) const {
  const std::vector<StageLoad>& loads = point.loads;
  const int64_t micro_batches = point.parts.shape.micro_batches;
  int64_t round_ns = 0;  // of one micro-batch as far as the stage at hand
  int64_t slowest_link_ns = 0;
  int64_t bound_ns = 0;
  int64_t left = job_.model.num_hidden_layers;
  int64_t fastest_layer_ns = std::numeric_limits<int64_t>::max();
  std::vector<StageLoad> rest;  // with all micro-batches, after the round as far as the stage
  for (size_t stage = 0; stage < loads.size(); ++stage) {
    const StageLoad& load = loads[stage];
    const int64_t known = stage < layers.size() ? layers[stage] : 1;
    if (stage < layers.size()) {
      bound_ns = std::max(bound_ns, round_ns + micro_batches * (load.fixed_ns + known * load.layer_ns));
    } else {
      rest.push_back({.fixed_ns = round_ns + micro_batches * load.fixed_ns,
                      .layer_ns = micro_batches * load.layer_ns,
                      .most = load.most});
      fastest_layer_ns = std::min(fastest_layer_ns, load.layer_ns);
    }
    left -= known;
    round_ns += load.fixed_ns + known * load.layer_ns;
    if (stage < point.parts.boundaries.size()) {
      const BoundaryCost& boundary = point.parts.boundaries[stage];
      round_ns += 2 * (boundary.serialization_ns + boundary.latency_ns + boundary.overhead_ns);
      slowest_link_ns = std::max(slowest_link_ns, boundary.serialization_ns);
    }
  }
  if (!rest.empty()) {
    round_ns += left * fastest_layer_ns;
    bound_ns = std::max(bound_ns, LeastStageTimeNs(rest, left + std::ssize(rest)));
  }
  bound_ns = std::max(bound_ns, round_ns + (micro_batches - 1) * slowest_link_ns);
  // The epilogue lasts at least as long as the first stage's own update.
  const LayerRange first{
      .first = 0, .last = (layers.empty() ? 1 : layers.front()) - 1, .has_embedding = true, .has_head = stages() == 1};
  return bound_ns + MinStageUpdateNs(point.parts, point.memory, 0, first);
}

int64_t CandidateModel::ZeroStageGainNs(const Point& point) const {
  PlanParts other;
  other.config = point.parts.config;
  other.stages = splits_layers() ? std::vector{point.parts.stages.front()} : point.parts.stages;
  const std::vector<LayerRange> layers = RangesOf(EvenLayers());
  int64_t gain_ns = 0;
  for (const int32_t zero_stage : {0, 1, 2, 3}) {
    other.config.zero_stage = zero_stage;
    if (splits_layers()) {  // as PartialBoundNs counts it
      const LayerRange first{.first = 0, .last = 0, .has_embedding = true};
      gain_ns = std::max(gain_ns, MinStageUpdateNs(point.parts, point.memory, 0, first) -
                                      MinStageUpdateNs(other, point.memory, 0, first));
      continue;
    }
    for (size_t stage = 0; stage < layers.size(); ++stage) {
      gain_ns = std::max(gain_ns, StageUpdateNs(point.parts, point.memory, stage, layers[stage]) -
                                      MinStageUpdateNs(other, point.memory, stage, layers[stage]));
    }
  }
  return gain_ns;
}

std::optional<int64_t> CandidateModel::ManyStagesNs(const Point& point) const {
  const int64_t layers = job_.model.num_hidden_layers;
  const int64_t micro_batches = point.parts.shape.micro_batches;
  int64_t round_ns = 0;
  for (const StageLoad& load : point.loads) {
    round_ns += load.fixed_ns + layers * load.layer_ns / stages();
  }
  int64_t delay_ns = 0;
  int64_t slowest_link_ns = 0;
  for (const BoundaryCost& boundary : point.parts.boundaries) {
    delay_ns += 2 * (boundary.serialization_ns + boundary.latency_ns + boundary.overhead_ns);
    slowest_link_ns = std::max(slowest_link_ns, boundary.crosses ? boundary.serialization_ns : 0);
  }
  const int64_t work_ns = micro_batches * LeastStageTimeNs(point.loads, layers);
  std::optional<int64_t> least_ns;
  for (const StageChoice& choice : StageChoices(job_, stages())) {
    const int64_t rounds = choice.per_rank;
    if (rounds == 1) {
      continue;
    }
    const int64_t busy_ns = work_ns + delay_ns + round_ns * (stages() - 1) / (stages() * rounds);
    const int64_t time_ns = std::max(busy_ns, micro_batches * rounds * slowest_link_ns);
    least_ns = std::min(least_ns.value_or(time_ns), time_ns);
  }
  if (least_ns.has_value()) {
    const LayerRange first{.first = 0, .last = layers / stages() - 1, .has_embedding = true, .has_head = stages() == 1};
    *least_ns += MinStageUpdateNs(point.parts, point.memory, 0, first);
  }
  return least_ns;
}

}  // namespace geopipe
