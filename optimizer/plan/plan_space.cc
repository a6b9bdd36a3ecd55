#include "optimizer/plan/plan_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan_costs.h"
#include "optimizer/schedule/generators.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// The named schedules run the backward whole, so their bound is that of the whole backward.
int64_t UnsplitLowerBoundNs(PipelineCosts costs) {
  for (int32_t chunk = 0; chunk < costs.shape.chunks; ++chunk) {
    costs.input_grad_ns[chunk] = costs.BackwardNs(chunk);
  }
  costs.weight_grad_ns.clear();
  return LowerBoundNs(costs);
}

}  // namespace

PlanSpace::PlanSpace(const JobSpec& job, const ClusterSpec& cluster, CommMode comm, Placement placement,
                     Recompute recompute)
    : job_(&job), cluster_(&cluster), comm_(comm), placement_(std::move(placement)), recompute_(recompute) {
  for (size_t stage = 1; stage < placement_.stages.size(); ++stage) {
    if (placement_.stages[stage - 1].site != placement_.stages[stage].site) {
      crossing_boundaries_.push_back(static_cast<int32_t>(stage) - 1);
    }
  }
}

absl::Status PlanSpace::ChooseKinds(const std::vector<int32_t>& fixed_delta_n) {
  const std::string& schedule = job_->search.schedule;
  if (schedule == "auto") {
    // 1f1b is geopipe with ΔN = 0 everywhere.
    kinds_ = fixed_delta_n.empty() ? std::vector<ScheduleKind>{ScheduleKind::kGeoPipe, ScheduleKind::kGpipe}
                                   : std::vector<ScheduleKind>{ScheduleKind::kGeoPipe};
  } else {
    GP_ASSIGN_OR_RETURN(const ScheduleKind kind, ParseScheduleKind(schedule));
    if (!IsSearched(kind)) {
      return absl::InvalidArgumentError(
          fmt::format("schedule {} is not among those that the search plans: use gpipe, 1f1b or geopipe", schedule));
    }
    kinds_ = {kind};
  }
  if (fixed_delta_n.empty()) {
    return absl::OkStatus();
  }
  if (kinds_.front() != ScheduleKind::kGeoPipe) {
    return absl::InvalidArgumentError(
        fmt::format("delta_n is given, but schedule {} has none; use schedule geopipe or auto", schedule));
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
  fixed_delta_n_ =
      fixed_delta_n.size() == crossings ? fixed_delta_n : std::vector<int32_t>(crossings, fixed_delta_n.front());
  return absl::OkStatus();
}

absl::StatusOr<PlanSpace> PlanSpace::Create(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile,
                                            CommMode comm, const std::vector<int32_t>& fixed_delta_n,
                                            Placement placement, Recompute recompute) {
  PlanSpace space(job, cluster, comm, std::move(placement), recompute);
  GP_RETURN_IF_ERROR(space.ChooseKinds(fixed_delta_n));
  const SearchSpec& search = job.search;
  for (int32_t b = 0; b < static_cast<int32_t>(search.micro_batch_size.size()); ++b) {
    for (int32_t s = 0; s < static_cast<int32_t>(search.sequence_length.size()); ++s) {
      const Plan skeleton = space.Skeleton(b, s);
      if (skeleton.micro_batches == 0) {
        space.points_.emplace_back();
        continue;
      }
      Point point;
      GP_ASSIGN_OR_RETURN(point.costs, CostsOfPlan(job, cluster, profile, skeleton));
      point.needs = NeedsOfPlan(job, skeleton);
      point.lower_bound_ns = UnsplitLowerBoundNs(point.costs);
      space.points_.emplace_back(std::move(point));
    }
  }
  const bool free_delta_n = fixed_delta_n.empty();
  for (const ScheduleKind kind : space.kinds_) {
    space.genome_space_.kind_uses_delta_n.push_back(kind == ScheduleKind::kGeoPipe);
  }
  space.genome_space_.micro_batch_choices = static_cast<int32_t>(search.micro_batch_size.size());
  space.genome_space_.sequence_choices = static_cast<int32_t>(search.sequence_length.size());
  space.genome_space_.crossings = free_delta_n ? space.crossings() : 0;
  space.genome_space_.max_delta_n = search.max_delta_n;
  return space;
}

Plan PlanSpace::Skeleton(int32_t micro_batch, int32_t sequence) const {
  Plan plan;
  plan.comm = comm_;
  plan.micro_batch_size = job_->search.micro_batch_size[micro_batch];
  plan.sequence_length = job_->search.sequence_length[sequence];
  plan.delta_n.assign(crossing_boundaries_.size(), 0);
  const int64_t tokens_per_micro_batch =
      plan.micro_batch_size * plan.sequence_length * std::max<int64_t>(1, job_->parallelism.data);
  const int64_t tokens = job_->training.tokens_per_iteration;
  const int64_t count = tokens % tokens_per_micro_batch == 0 ? tokens / tokens_per_micro_batch : 0;
  plan.micro_batches = count <= kMaxMicroBatches ? static_cast<int32_t>(count) : 0;
  plan.recompute = recompute_;
  plan.stages = placement_.stages;
  return plan;
}

const std::optional<PlanSpace::Point>& PlanSpace::PointAt(int32_t micro_batch, int32_t sequence) const {
  return points_[static_cast<size_t>(micro_batch) * job_->search.sequence_length.size() + sequence];
}

int64_t PlanSpace::size() const {
  GenomeSpace one = genome_space_;
  one.micro_batch_choices = 1;
  one.sequence_choices = 1;
  const int64_t points =
      std::count_if(points_.begin(), points_.end(), [](const auto& point) { return point.has_value(); });
  GP_CHECK(points > 0, "ValidateJob requires a b and s that divide the tokens");
  const int64_t per_point = one.size();
  return per_point > std::numeric_limits<int64_t>::max() / points ? std::numeric_limits<int64_t>::max()
                                                                  : per_point * points;
}

std::vector<Genome> PlanSpace::Seeds() const {
  std::vector<Genome> seeds;
  const auto kind = std::find(kinds_.begin(), kinds_.end(), ScheduleKind::kGeoPipe);
  if (kind == kinds_.end() || genome_space_.crossings == 0) {
    return seeds;
  }
  for (int32_t b = 0; b < genome_space_.micro_batch_choices; ++b) {
    for (int32_t s = 0; s < genome_space_.sequence_choices; ++s) {
      const std::optional<Point>& point = PointAt(b, s);
      if (!point.has_value()) {
        continue;
      }
      int64_t period_ns = 1;
      for (int32_t chunk = 0; chunk < point->costs.shape.chunks; ++chunk) {
        period_ns = std::max(period_ns, point->costs.forward_ns[chunk] + point->costs.BackwardNs(chunk));
      }
      Genome seed{static_cast<int32_t>(kind - kinds_.begin()), b, s, {}};
      for (const int32_t boundary : crossing_boundaries_) {
        const BoundaryCost& cost = point->costs.boundaries[boundary];
        const int64_t round_trip_ns = 2 * (cost.latency_ns + cost.serialization_ns + cost.overhead_ns);
        const int64_t hides = (round_trip_ns + period_ns - 1) / period_ns;
        seed.delta_n.push_back(static_cast<int32_t>(std::min<int64_t>(hides, genome_space_.max_delta_n)));
      }
      seeds.push_back(std::move(seed));
    }
  }
  return seeds;
}

SearchProblem PlanSpace::Problem() const {
  SearchProblem problem;
  problem.space = genome_space_;
  problem.evaluate = [this](std::span<const Genome> genomes) {
    std::vector<Fitness> fitness;
    fitness.reserve(genomes.size());
    for (const Genome& genome : genomes) {
      fitness.push_back(Evaluate(genome));
    }
    return fitness;
  };
  problem.lower_bound_ns = [this](const Genome& genome) { return LowerBoundNs(genome.micro_batch, genome.sequence); };
  problem.repair = [this](Genome& genome) { Repair(genome); };
  problem.seeds = Seeds();
  return problem;
}

Fitness PlanSpace::Evaluate(const Genome& genome) const {
  if (!Divides(genome.micro_batch, genome.sequence)) {
    return {.feasible = false, .iteration_ns = 0, .excess = std::numeric_limits<int64_t>::max()};
  }
  const Candidate candidate = CandidateOf(genome);
  const int64_t excess = Tightest(candidate).excess_bytes();
  if (excess > 0) {
    return {.feasible = false, .iteration_ns = 0, .excess = excess};
  }
  return {.feasible = true, .iteration_ns = Run(candidate).iteration_ns, .excess = 0};
}

int64_t PlanSpace::LowerBoundNs(int32_t micro_batch, int32_t sequence) const {
  const std::optional<Point>& point = PointAt(micro_batch, sequence);
  return point.has_value() ? point->lower_bound_ns : std::numeric_limits<int64_t>::max();
}

void PlanSpace::Repair(Genome& genome) const {
  if (genome.delta_n.empty() || !Divides(genome.micro_batch, genome.sequence)) {
    return;
  }
  while (true) {
    const TightestStage tightest = Tightest(CandidateOf(genome));
    if (tightest.excess_bytes() <= 0) {
      return;
    }
    // A stage holds what crossings at or after it advance, and the messages of the stage before it, which the crossing
    // between the two advances too.
    int32_t* largest = nullptr;
    for (size_t crossing = 0; crossing < genome.delta_n.size(); ++crossing) {
      const bool matters = crossing_boundaries_[crossing] >= tightest.stage - 1;
      if (matters && genome.delta_n[crossing] > 0 && (largest == nullptr || genome.delta_n[crossing] >= *largest)) {
        largest = &genome.delta_n[crossing];
      }
    }
    if (largest == nullptr) {
      return;
    }
    --*largest;
  }
}

Candidate PlanSpace::CandidateOf(const Genome& genome) const {
  Candidate candidate{kinds_[genome.kind], comm_, genome.micro_batch, genome.sequence, genome.delta_n};
  if (!fixed_delta_n_.empty()) {
    candidate.delta_n = fixed_delta_n_;
  }
  return candidate;
}

std::vector<int32_t> PlanSpace::BoundaryDeltaNOf(const Candidate& candidate) const {
  GP_CHECK(candidate.delta_n.size() == crossing_boundaries_.size());
  std::vector<int32_t> boundary_delta_n(placement_.stages.size() - 1, 0);
  for (size_t crossing = 0; crossing < crossing_boundaries_.size(); ++crossing) {
    boundary_delta_n[crossing_boundaries_[crossing]] = candidate.delta_n[crossing];
  }
  return boundary_delta_n;
}

std::vector<int64_t> PlanSpace::InFlightOf(const Candidate& candidate) const {
  const Point& point = *PointAt(candidate.micro_batch, candidate.sequence);
  const std::vector<int32_t> delta_n = BoundaryDeltaNOf(candidate);
  const int32_t stages = point.costs.shape.devices;
  std::vector<int64_t> in_flight(stages);
  int64_t advance = 0;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    advance += stage + 1 < stages ? delta_n[stage] : 0;
    in_flight[stage] = InFlight(candidate.schedule, stages, stage, point.costs.shape.micro_batches, advance);
  }
  return in_flight;
}

std::vector<int64_t> PlanSpace::PeakBytes(const Candidate& candidate) const {
  const Point& point = *PointAt(candidate.micro_batch, candidate.sequence);
  const std::vector<int64_t> in_flight = InFlightOf(candidate);
  std::vector<int64_t> peaks;
  for (const StageMemory& memory : MemoryOfStages(point.needs, in_flight, candidate.comm)) {
    peaks.push_back(memory.static_bytes() + memory.activation_bytes * in_flight[peaks.size()]);
  }
  return peaks;
}

TightestStage PlanSpace::Tightest(const Candidate& candidate) const {
  const std::vector<int64_t> peaks = PeakBytes(candidate);
  TightestStage tightest;
  for (int32_t stage = 0; stage < static_cast<int32_t>(peaks.size()); ++stage) {
    const int64_t capacity = placement_.stages[stage].capacity_bytes;
    if (stage == 0 || peaks[stage] - capacity > tightest.excess_bytes()) {
      tightest = {.stage = stage, .need_bytes = peaks[stage], .capacity_bytes = capacity};
    }
  }
  return tightest;
}

Plan PlanSpace::PlanOf(const Candidate& candidate) const {
  Plan plan = Skeleton(candidate.micro_batch, candidate.sequence);
  plan.schedule = candidate.schedule;
  plan.comm = candidate.comm;
  plan.delta_n = candidate.delta_n;
  plan.idle = placement_.idle;
  const std::vector<int64_t> peaks = PeakBytes(candidate);
  for (size_t stage = 0; stage < peaks.size(); ++stage) {
    plan.stages[stage].peak_bytes = peaks[stage];
  }
  return plan;
}

PipelineCosts PlanSpace::CostsOf(const Candidate& candidate) const {
  const Point& point = *PointAt(candidate.micro_batch, candidate.sequence);
  PipelineCosts costs = point.costs;
  costs.comm = candidate.comm;
  const std::vector<StageMemory> memory = MemoryOfStages(point.needs, InFlightOf(candidate), candidate.comm);
  for (size_t stage = 0; stage < memory.size(); ++stage) {
    costs.memory->static_bytes[stage] = memory[stage].static_bytes();
  }
  return costs;
}

SimulationResult PlanSpace::Run(const Candidate& candidate) const {
  const PipelineCosts costs = CostsOf(candidate);
  const absl::StatusOr<Schedule> schedule = MakeSchedule(candidate.schedule, costs.shape, BoundaryDeltaNOf(candidate));
  GP_CHECK(schedule.ok(), "{}", schedule.status().ToString());
  absl::StatusOr<SimulationResult> result = Simulate(*schedule, costs);
  GP_CHECK(result.ok(), "{}", result.status().ToString());
  return *std::move(result);
}

}  // namespace geopipe
