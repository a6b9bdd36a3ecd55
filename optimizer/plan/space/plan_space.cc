#include "optimizer/plan/space/plan_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/space/fit_candidate.h"
#include "optimizer/simulator/prepared_simulator.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Most genomes of the same work that one simulator runs, so that threads can share a batch of them, too.
constexpr size_t kMaxAlike = 4;

int32_t Size(const auto& choices) { return static_cast<int32_t>(choices.size()); }

}  // namespace

PlanSpace::PlanSpace(CandidateModel model, Kinds kinds) : model_(std::move(model)), kinds_(std::move(kinds)) {
  const JobSpec& job = model_.job();
  const auto choice = [this](const auto& choices) {
    genome_space_.genes.push_back({.role = GeneRole::kChoice, .least = 0, .greatest = Size(choices) - 1});
  };
  choice(kinds_.searched);
  choice(model_.modes());
  choice(job.search.micro_batch_size);
  choice(job.search.sequence_length);
  GP_CHECK(genome_space_.genes.size() == kChoices);
  if (model_.splits_layers()) {
    const auto most = static_cast<int32_t>(job.model.num_hidden_layers - model_.stages() + 1);
    for (const int32_t even : model_.EvenLayers()) {
      genome_space_.genes.push_back({.role = GeneRole::kShare, .least = 1, .greatest = most, .rest = even});
    }
    genome_space_.groups = {{.first = kChoices, .count = model_.stages(), .sum = job.model.num_hidden_layers}};
  }
  uint64_t uses_delta_n = 0;
  for (size_t kind = 0; kind < kinds_.searched.size(); ++kind) {
    uses_delta_n |= uint64_t{RowOf(kinds_.searched[kind]).uses_delta_n ? 1U : 0U} << kind;
  }
  for (int32_t crossing = 0; kinds_.searches_delta_n && crossing < model_.crossings(); ++crossing) {
    genome_space_.genes.push_back({.role = GeneRole::kOrdinal,
                                   .least = 0,
                                   .greatest = model_.max_delta_n(),
                                   .rest = 0,
                                   .active_for = uses_delta_n});
  }
}

ScheduleKind SearchedKind(ScheduleKind kind) {
  const ScheduleRow& row = RowOf(kind);
  return row.searched                                      ? kind
         : row.uses_delta_n || kind == ScheduleKind::kAuto ? ScheduleKind::kGeoPipe
                                                           : ScheduleKind::kOneFOneB;
}

bool IsMadeByRule(const JobSpec& job) {
  const ScheduleKind kind = job.search.schedule;
  return kind != ScheduleKind::kAuto && kind != SearchedKind(kind);
}

absl::StatusOr<PlanSpace::Kinds> PlanSpace::ChooseKinds(const JobSpec& job, size_t crossings,
                                                        const std::vector<int32_t>& fixed_delta_n) {
  const ScheduleKind schedule = job.search.schedule;
  Kinds kinds;
  kinds.searched = {SearchedKind(schedule)};
  if (schedule == ScheduleKind::kAuto && fixed_delta_n.empty()) {
    if (!job.search.max_delta_n.has_value() || crossings == 0) {  // gpipe runs ahead with all micro-batches
      kinds.searched.push_back(ScheduleKind::kGpipe);
    }  // 1f1b is geopipe with ΔN = 0 everywhere
  }
  if (fixed_delta_n.empty()) {
    return kinds;
  }
  if (!RowOf(kinds.searched.front()).uses_delta_n) {
    return absl::InvalidArgumentError(fmt::format("delta_n is given, but schedule {} has none; use one of {}, auto",
                                                  ScheduleKindName(schedule),
                                                  ScheduleNames(&ScheduleRow::uses_delta_n)));
  }
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
  kinds.searches_delta_n = false;
  kinds.fixed_delta_n =
      fixed_delta_n.size() == crossings ? fixed_delta_n : std::vector<int32_t>(crossings, fixed_delta_n.front());
  return kinds;
}

absl::StatusOr<PlanSpace> PlanSpace::Create(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                            CommMode comm, const std::vector<int32_t>& fixed_delta_n, Plan placement) {
  GP_ASSIGN_OR_RETURN(Kinds kinds, ChooseKinds(job, placement.Crossings().size(), fixed_delta_n));
  GP_ASSIGN_OR_RETURN(CandidateModel model, CandidateModel::Create(job, cluster, source, comm, std::move(placement)));
  return PlanSpace(std::move(model), std::move(kinds));
}

int64_t PlanSpace::size() const {
  GenomeSpace one = genome_space_;
  for (const Choice choice : {kMode, kMicroBatch, kSequence}) {
    one.genes[choice].greatest = 0;
  }
  GP_CHECK(!model_.points().empty(), "ValidateJob requires a b and s that divide the tokens");
  return SaturatingProduct(one.size(), std::ssize(model_.points()));
}

Candidate PlanSpace::CandidateOf(const Genome& genome) const {
  Candidate candidate{.schedule = kinds_.searched[genome[kKind]],
                      .comm = model_.comm(),
                      .mode = model_.modes()[genome[kMode]],
                      .micro_batch = genome[kMicroBatch],
                      .sequence = genome[kSequence],
                      .layers = {},
                      .delta_n = kinds_.fixed_delta_n};
  const auto first_layer = genome.begin() + kChoices;
  const auto first_delta_n = first_layer + (model_.splits_layers() ? model_.stages() : 0);
  candidate.layers = model_.splits_layers() ? std::vector<int32_t>(first_layer, first_delta_n) : model_.EvenLayers();
  if (kinds_.searches_delta_n) {
    candidate.delta_n.assign(first_delta_n, genome.end());
  }
  return candidate;
}

Genome PlanSpace::GenomeOf(const Candidate& candidate) const {
  const auto index = [](const auto& choices, auto value) {
    return static_cast<int32_t>(std::find(choices.begin(), choices.end(), value) - choices.begin());
  };
  Genome genome{index(kinds_.searched, candidate.schedule), index(model_.modes(), candidate.mode),
                candidate.micro_batch, candidate.sequence};
  if (model_.splits_layers()) {
    genome.insert(genome.end(), candidate.layers.begin(), candidate.layers.end());
  }
  if (kinds_.searches_delta_n) {
    genome.insert(genome.end(), candidate.delta_n.begin(), candidate.delta_n.end());
  }
  return genome;
}

Candidate PlanSpace::FrugalCandidate(ScheduleKind kind, const CandidateModel::Point& point) const {
  return {.schedule = kind,
          .comm = model_.comm(),
          .mode = point.mode,
          .micro_batch = point.micro_batch,
          .sequence = point.sequence,
          .layers = model_.EvenLayers(),
          .delta_n = kinds_.searches_delta_n ? std::vector<int32_t>(model_.crossings(), 0) : kinds_.fixed_delta_n};
}

void PlanSpace::AddSeeds(Candidate candidate, std::vector<Genome>& seeds) const {
  seeds.push_back(GenomeOf(candidate));
  candidate.layers = BalancedLayers(model_, candidate);
  seeds.push_back(GenomeOf(candidate));
  if (!kinds_.searches_delta_n || !RowOf(candidate.schedule).uses_delta_n || model_.crossings() == 0) {
    return;
  }
  candidate.delta_n = HidingDeltaN(model_, candidate);
  Candidate even = candidate;
  even.layers = model_.EvenLayers();
  LowerDeltaN(model_, even);
  seeds.push_back(GenomeOf(even));
  candidate.layers = BalancedLayers(model_, candidate);  // for the memory that this advance leaves
  LowerDeltaN(model_, candidate);
  seeds.push_back(GenomeOf(candidate));
  const int64_t bound_ns = model_.BoundNs(candidate);
  for (int32_t& delta_n : candidate.delta_n) {
    int32_t least = 0;
    int32_t enough = delta_n;
    while (least < enough) {
      delta_n = least + (enough - least) / 2;
      if (model_.BoundNs(candidate) <= bound_ns) {
        enough = delta_n;
      } else {
        least = delta_n + 1;
      }
    }
    delta_n = enough;
  }
  seeds.push_back(GenomeOf(candidate));
}

std::vector<Genome> PlanSpace::Seeds() const {
  std::vector<Genome> seeds;
  for (const ScheduleKind kind : kinds_.searched) {
    for (const CandidateModel::Point& point : model_.points()) {
      AddSeeds(FrugalCandidate(kind, point), seeds);
    }
  }
  return seeds;
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

std::span<const int32_t> PlanSpace::WorkOf(const Genome& genome) const {
  return std::span(genome).subspan(kMode, kChoices - kMode + (model_.splits_layers() ? model_.stages() : 0));
}

std::vector<Fitness> PlanSpace::EvaluateAll(std::span<const Genome> genomes, const ParallelFor& parallel_for) const {
  std::vector<size_t> order(genomes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::ranges::lexicographical_compare(WorkOf(genomes[a]), WorkOf(genomes[b]));
  });
  std::vector<std::span<const size_t>> runs;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool joins = i > 0 && runs.back().size() < kMaxAlike &&
                       std::ranges::equal(WorkOf(genomes[order[i - 1]]), WorkOf(genomes[order[i]]));
    if (joins) {
      runs.back() = {runs.back().data(), runs.back().size() + 1};
    } else {
      runs.emplace_back(&order[i], 1);
    }
  }
  std::vector<Fitness> fitness(genomes.size());
  const auto evaluate = [&](int64_t run) { EvaluateAlike(genomes, runs[run], fitness); };
  InParallel(parallel_for, std::ssize(runs), evaluate);
  return fitness;
}

void PlanSpace::EvaluateAlike(std::span<const Genome> genomes, std::span<const size_t> run,
                              std::vector<Fitness>& fitness) const {
  std::optional<PreparedSimulator> simulator;
  for (const size_t index : run) {
    const Genome& genome = genomes[index];
    if (!model_.Divides(genome[kMicroBatch], genome[kSequence])) {
      fitness[index] = {.feasible = false, .iteration_ns = 0, .excess = kNever};
      continue;
    }
    const Candidate candidate = CandidateOf(genome);
    const int64_t excess = model_.Tightest(candidate).excess_bytes();
    if (excess > 0) {
      fitness[index] = {.feasible = false, .iteration_ns = 0, .excess = excess};
      continue;
    }
    if (!simulator.has_value()) {
      PipelineCosts costs = model_.CostsOf(candidate);
      costs.memory.reset();  // known in closed form, and all that ΔN changes
      simulator.emplace(costs);
    }
    const auto outcome = simulator->Run(model_.ScheduleOf(candidate));
    GP_CHECK(outcome.ok(), "{}", outcome.status().ToString());
    fitness[index] = {.feasible = true, .iteration_ns = outcome->iteration_ns, .excess = 0};
  }
}

Fitness PlanSpace::Evaluate(const Genome& genome) const { return EvaluateAll({&genome, 1}, {}).front(); }

int64_t PlanSpace::LowerBoundNs(std::span<const int32_t> genes) const {
  const CandidateModel::Point* point =
      model_.FindPoint(model_.modes()[genes[kMode]], genes[kMicroBatch], genes[kSequence]);
  if (point == nullptr) {
    return kNever;
  }
  if (genes.size() == genome_space_.genes.size()) {
    return model_.BoundNs(CandidateOf(Genome(genes.begin(), genes.end())));
  }
  if (!model_.splits_layers() || genes.size() == kChoices) {
    return point->least_ns;
  }
  const size_t known = std::min(genes.size() - kChoices, static_cast<size_t>(model_.stages()));
  return model_.PartialBoundNs(*point, genes.subspan(kChoices, known));
}

int64_t PlanSpace::LowerBoundNs() const {
  int64_t least_ns = kNever;
  for (const CandidateModel::Point& point : model_.points()) {
    least_ns = std::min(least_ns, point.least_ns);
  }
  return least_ns;
}

int64_t PlanSpace::LowerBoundOfZeroStagesNs() const {
  int64_t least_ns = kNever;
  for (const CandidateModel::Point& point : model_.points()) {
    least_ns = std::min(least_ns, point.least_ns - model_.ZeroStageGainNs(point));
  }
  return least_ns;
}

std::optional<PlanSpace::Guess> PlanSpace::Quick() const {
  std::optional<Guess> best;
  for (const CandidateModel::Point& point : model_.points()) {
    if (best.has_value() && point.least_ns >= best->iteration_ns) {
      continue;
    }
    Candidate candidate = FrugalCandidate(kinds_.searched.front(), point);
    candidate.layers = BalancedLayers(model_, candidate);
    if (kinds_.searches_delta_n && RowOf(candidate.schedule).uses_delta_n) {
      candidate.delta_n = HidingDeltaN(model_, candidate);
      LowerDeltaN(model_, candidate);
    }
    if (model_.Tightest(candidate).excess_bytes() > 0) {
      continue;
    }
    const int64_t bound_ns = model_.BoundNs(candidate);
    if (!best.has_value() || bound_ns < best->iteration_ns) {
      best = Guess{bound_ns, std::move(candidate)};
    }
  }
  return best;
}

int64_t PlanSpace::SearchedNs() const {
  int64_t least_ns = LowerBoundNs();
  for (const CandidateModel::Point& point : model_.points()) {
    const std::optional<int64_t> time_ns = model_.ManyStagesNs(point);
    if (time_ns.has_value() && *time_ns < least_ns && MayFit(model_, FrugalCandidate(kinds_.searched.front(), point))) {
      least_ns = *time_ns;
    }
  }
  return least_ns;
}

int64_t PlanSpace::LeastExcessBytes() const {
  int64_t least_bytes = kNever;
  for (const CandidateModel::Point& point : model_.points()) {
    const Candidate candidate = FrugalCandidate(kinds_.searched.front(), point);
    if (MayFit(model_, candidate)) {
      return 0;
    }
    least_bytes = std::min(least_bytes, model_.Tightest(candidate).excess_bytes());
  }
  return least_bytes;
}

void PlanSpace::Repair(Genome& genome) const {
  if (!model_.Divides(genome[kMicroBatch], genome[kSequence])) {
    return;
  }
  const std::vector<MemoryMode>& modes = model_.modes();
  Candidate candidate = CandidateOf(genome);
  while (model_.Tightest(candidate).excess_bytes() > 0) {
    if (kinds_.searches_delta_n && LowerDeltaN(model_, candidate)) {
      break;
    }
    if (model_.splits_layers() && MoveOneLayer(model_, candidate, model_.Tightest(candidate).stage)) {
      continue;
    }
    const auto mode = std::find(modes.begin(), modes.end(), candidate.mode);
    if (mode + 1 == modes.end()) {
      break;
    }
    candidate.mode = *(mode + 1);
  }
  genome = GenomeOf(candidate);
}

}  // namespace geopipe
