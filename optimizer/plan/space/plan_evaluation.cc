// What candidates cost: their simulated time, and bounds on it.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/plan/evaluation/schedule_bound.h"
#include "optimizer/plan/space/plan_space.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/prepared_simulator.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Most genomes of the same work that one simulator runs, so that threads share out a batch of them, too.
constexpr size_t kMostAlike = 4;

Schedule ScheduleOf(const Candidate& candidate, const PipelineShape& shape, std::span<const int32_t> boundary_delta_n) {
  absl::StatusOr<Schedule> schedule = MakeSchedule(candidate.schedule, shape, boundary_delta_n);
  GP_CHECK(schedule.ok(), "{}", schedule.status().ToString());
  return *std::move(schedule);
}

}  // namespace

std::span<const int32_t> PlanSpace::WorkOf(const Genome& genome) const {
  return std::span(genome).subspan(kRecompute, kChoices - kRecompute + (searches_layers_ ? stages() : 0));
}

SearchProblem PlanSpace::Problem(const ParallelFor& parallel_for) const {
  SearchProblem problem;
  problem.space = genome_space_;
  problem.evaluate = [this, parallel_for](std::span<const Genome> genomes) {
    return EvaluateAll(genomes, parallel_for);
  };
  problem.lower_bound_ns = [this](std::span<const int32_t> genes) { return LowerBoundNs(genes); };
  problem.repair = [this](Genome& genome) { Repair(genome); };
  problem.seeds = Seeds();
  return problem;
}

std::vector<Fitness> PlanSpace::EvaluateAll(std::span<const Genome> genomes, const ParallelFor& parallel_for) const {
  std::vector<size_t> order(genomes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::ranges::lexicographical_compare(WorkOf(genomes[a]), WorkOf(genomes[b]));
  });
  std::vector<std::span<const size_t>> runs;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool joins = i > 0 && runs.back().size() < kMostAlike &&
                       std::ranges::equal(WorkOf(genomes[order[i - 1]]), WorkOf(genomes[order[i]]));
    if (joins) {
      runs.back() = {runs.back().data(), runs.back().size() + 1};
    } else {
      runs.emplace_back(&order[i], 1);
    }
  }
  std::vector<Fitness> fitness(genomes.size());
  const auto evaluate = [&](int64_t run) { EvaluateAlike(genomes, runs[run], fitness); };
  if (parallel_for && runs.size() > 1) {
    parallel_for(std::ssize(runs), evaluate);
  } else {
    for (int64_t run = 0; run < std::ssize(runs); ++run) {
      evaluate(run);
    }
  }
  return fitness;
}

void PlanSpace::EvaluateAlike(std::span<const Genome> genomes, std::span<const size_t> run,
                              std::vector<Fitness>& fitness) const {
  std::optional<PreparedSimulator> simulator;
  PipelineShape shape;
  for (const size_t index : run) {
    const Genome& genome = genomes[index];
    if (!Divides(genome[kMicroBatch], genome[kSequence])) {
      fitness[index] = {.feasible = false, .iteration_ns = 0, .excess = kNever};
      continue;
    }
    const Candidate candidate = CandidateOf(genome);
    const int64_t excess = Tightest(candidate).excess_bytes();
    if (excess > 0) {
      fitness[index] = {.feasible = false, .iteration_ns = 0, .excess = excess};
      continue;
    }
    if (!simulator.has_value()) {
      PipelineCosts costs = CostsOf(candidate);
      costs.memory.reset();  // known in closed form, and all that ΔN changes
      shape = costs.shape;
      simulator.emplace(costs);
    }
    const auto outcome = simulator->Run(ScheduleOf(candidate, shape, BoundaryDeltaNOf(candidate)));
    GP_CHECK(outcome.ok(), "{}", outcome.status().ToString());
    fitness[index] = {.feasible = true, .iteration_ns = outcome->iteration_ns, .excess = 0};
  }
}

Fitness PlanSpace::Evaluate(const Genome& genome) const { return EvaluateAll({&genome, 1}, {}).front(); }

SimulationResult PlanSpace::Run(const Candidate& candidate) const {
  const PipelineCosts costs = CostsOf(candidate);
  absl::StatusOr<SimulationResult> result =
      Simulate(ScheduleOf(candidate, costs.shape, BoundaryDeltaNOf(candidate)), costs);
  GP_CHECK(result.ok(), "{}", result.status().ToString());
  return *std::move(result);
}

int64_t PlanSpace::BoundNs(const Candidate& candidate) const {
  return ScheduleBoundNs(candidate.schedule, CostsOf(candidate), BoundaryDeltaNOf(candidate));
}

int64_t PlanSpace::LowerBoundNs(std::span<const int32_t> genes) const {
  const std::optional<Point>& point = PointAt(modes_[genes[kRecompute]], genes[kMicroBatch], genes[kSequence]);
  if (!point.has_value()) {
    return kNever;
  }
  if (genes.size() == genome_space_.genes.size()) {
    return BoundNs(CandidateOf(Genome(genes.begin(), genes.end())));
  }
  if (!searches_layers_ || genes.size() == kChoices) {
    return point->least_ns;
  }
  const size_t known = std::min<size_t>(genes.size() - kChoices, placement_.stages.size());
  return PartialBoundNs(*point, genes.subspan(kChoices, known));
}

int64_t PlanSpace::LowerBoundNs() const {
  int64_t least_ns = kNever;
  for (const std::optional<Point>& point : points_) {
    least_ns = std::min(least_ns, point.has_value() ? point->least_ns : kNever);
  }
  return least_ns;
}

// The bound of UnsplitBoundNs when only the first stages have their layers; the others share what is left as is best
// for the bound.
int64_t PlanSpace::PartialBoundNs(const Point& point, std::span<const int32_t> layers) const {
  const std::vector<StageLoad>& loads = point.loads;
  const int64_t micro_batches = point.parts.micro_batches;
  int64_t round_ns = 0;  // of one micro-batch as far as the stage at hand
  int64_t slowest_link_ns = 0;
  int64_t bound_ns = 0;
  int64_t left = job_.model.num_hidden_layers;
  int64_t fastest_layer_ns = kNever;
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
  return bound_ns + StageUpdateNs(point.parts, point.memory, 0, first);
}

}  // namespace geopipe
