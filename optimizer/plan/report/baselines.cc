#include "optimizer/plan/report/baselines.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/shapes.h"
#include "optimizer/search/genetic_search.h"

namespace geopipe {
namespace {

struct Variant {
  ScheduleKind schedule;
  CommMode comm;
};

constexpr std::array<Variant, 3> kFixedVariants{{
    {ScheduleKind::kGpipe, CommMode::kNonBlocking},
    {ScheduleKind::kOneFOneB, CommMode::kBlocking},
    {ScheduleKind::kOneFOneB, CommMode::kNonBlocking},
}};

constexpr int64_t kGeoPipeEvaluations = 512;

Baseline Measure(const PlanSpace& space, const Candidate& candidate, std::string scope) {
  const SimulationResult result = space.Run(candidate);
  return {.schedule = std::string(ScheduleKindName(candidate.schedule)),
          .comm = std::string(CommModeName(candidate.comm)),
          .scope = std::move(scope),
          .site = "",
          .micro_batch_size = space.job().search.micro_batch_size[candidate.micro_batch],
          .sequence_length = space.job().search.sequence_length[candidate.sequence],
          .iteration_ns = result.iteration_ns,
          .bubble_ratio = result.bubble_ratio,
          .fits = result.fits};
}

bool Better(const Baseline& a, const Baseline& b) {
  return a.fits != b.fits ? a.fits : a.iteration_ns < b.iteration_ns;
}

// A recompute mode that the job allows, b and s that divide the tokens, and layers; empty: those that balance it.
struct Spot {
  int32_t mode = 0;
  int32_t micro_batch = 0;
  int32_t sequence = 0;
  std::vector<int32_t> layers;

  friend bool operator==(const Spot&, const Spot&) = default;
};

Spot SpotOf(const PlanSpace& space, const Candidate& candidate) {
  const auto mode = std::find(space.modes().begin(), space.modes().end(), candidate.recompute) - space.modes().begin();
  return {static_cast<int32_t>(mode), candidate.micro_batch, candidate.sequence, candidate.layers};
}

// All, with balanced layers; with the plan's, too, unless these are empty.
std::vector<Spot> Spots(const PlanSpace& space, const std::vector<int32_t>& plan_layers) {
  std::vector<Spot> spots;
  const std::vector<Gene>& genes = space.genome_space().genes;
  for (int32_t mode = 0; mode <= genes[PlanSpace::kRecompute].greatest; ++mode) {
    for (int32_t b = 0; b <= genes[PlanSpace::kMicroBatch].greatest; ++b) {
      for (int32_t s = 0; s <= genes[PlanSpace::kSequence].greatest; ++s) {
        if (space.Divides(b, s)) {
          if (!plan_layers.empty()) {
            spots.push_back({mode, b, s, plan_layers});
          }
          if (plan_layers.empty() || space.searches_layers()) {
            spots.push_back({mode, b, s, {}});
          }
        }
      }
    }
  }
  return spots;
}

Candidate CandidateAt(const PlanSpace& space, const Variant& variant, const Spot& spot) {
  Candidate candidate{.schedule = variant.schedule,
                      .comm = variant.comm,
                      .recompute = space.modes()[spot.mode],
                      .micro_batch = spot.micro_batch,
                      .sequence = spot.sequence,
                      .layers = spot.layers,
                      .delta_n = std::vector<int32_t>(space.crossings(), 0)};
  if (spot.layers.empty()) {
    candidate.layers = space.BalancedLayers(candidate);
  }
  return candidate;
}

// The variant's best spot (see Spots), if one fits and takes less than `beat_ns`; without `beat_ns`, else the best that
// does not fit.
std::optional<Baseline> BestOfVariant(const PlanSpace& space, const Variant& variant,
                                      const std::vector<int32_t>& plan_layers, std::optional<int64_t> beat_ns) {
  std::vector<std::tuple<bool, int64_t, Candidate>> candidates;  // those that fit first, lower bound first
  for (const Spot& spot : Spots(space, plan_layers)) {
    Candidate candidate = CandidateAt(space, variant, spot);
    const bool exceeds = space.Tightest(candidate).excess_bytes() > 0;
    const int64_t bound_ns = space.BoundNs(candidate);
    if (!beat_ns.has_value() || (!exceeds && bound_ns < *beat_ns)) {
      candidates.emplace_back(exceeds, bound_ns, std::move(candidate));
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  std::optional<Baseline> best;
  for (const auto& [exceeds, bound_ns, candidate] : candidates) {
    if (best.has_value() && ((best->fits && exceeds) || bound_ns >= best->iteration_ns)) {
      continue;
    }
    Baseline found = Measure(space, candidate, "best");
    if (!best.has_value() || Better(found, *best)) {
      best = std::move(found);
    }
  }
  return best;
}

bool IsGeoPipe(const Candidate& candidate) {
  return candidate.schedule == ScheduleKind::kGeoPipe && candidate.comm == CommMode::kNonBlocking;
}

// geopipe's best over these spots, and no worse than `known` if that is geopipe at one of them.
Candidate BestGeoPipe(const PlanSpace& space, const std::vector<Spot>& spots, const Candidate& known, uint64_t seed) {
  std::vector<Candidate> bases;
  bases.reserve(spots.size());
  for (const Spot& spot : spots) {
    bases.push_back(CandidateAt(space, {ScheduleKind::kGeoPipe, CommMode::kNonBlocking}, spot));
  }
  SearchProblem problem;
  problem.space.genes = {{.role = GeneRole::kChoice, .least = 0, .greatest = static_cast<int32_t>(spots.size()) - 1}};
  for (int32_t crossing = 0; crossing < space.crossings(); ++crossing) {
    problem.space.genes.push_back(
        {.role = GeneRole::kOrdinal, .least = 0, .greatest = space.job().search.max_delta_n, .rest = 0});
  }
  const auto spell_out = [&](std::span<const int32_t> genome) {
    Candidate candidate = bases[genome.front()];
    std::copy(genome.begin() + 1, genome.end(), candidate.delta_n.begin());
    return candidate;
  };
  problem.lower_bound_ns = [&](std::span<const int32_t> genes) {
    if (genes.size() == problem.space.genes.size()) {
      return space.BoundNs(spell_out(genes));
    }
    const Spot& spot = spots[genes.front()];
    return space.LowerBoundAtNs(spot.mode, spot.micro_batch, spot.sequence);
  };
  problem.repair = [&](Genome& genome) {
    Candidate candidate = spell_out(genome);
    space.LowerDeltaN(candidate);
    std::copy(candidate.delta_n.begin(), candidate.delta_n.end(), genome.begin() + 1);
  };
  problem.evaluate = [&](std::span<const Genome> genomes) {
    std::vector<Fitness> fitness;
    for (const Genome& genome : genomes) {
      const Candidate candidate = spell_out(genome);
      const int64_t excess = space.Tightest(candidate).excess_bytes();
      fitness.push_back(excess > 0 ? Fitness{.feasible = false, .iteration_ns = 0, .excess = excess}
                                   : Fitness{.feasible = true, .iteration_ns = space.Run(candidate).iteration_ns});
    }
    return fitness;
  };
  const auto at = std::find(spots.begin(), spots.end(), SpotOf(space, known));
  if (IsGeoPipe(known) && at != spots.end()) {
    Genome start{static_cast<int32_t>(at - spots.begin())};
    start.insert(start.end(), known.delta_n.begin(), known.delta_n.end());
    problem.seeds = {std::move(start)};
  }
  const SearchOutcome outcome = GeneticSearch(problem, {.seed = seed, .max_evaluations = kGeoPipeEvaluations});
  return spell_out(outcome.evaluated.front().genome);
}

}  // namespace

std::vector<Baseline> ScheduleBaselines(const PlanSpace& space, const Candidate& plan, const Candidate& searched,
                                        uint64_t seed) {
  std::vector<Baseline> baselines;
  for (const Variant& variant : kFixedVariants) {
    Candidate same = plan;
    same.schedule = variant.schedule;
    same.comm = variant.comm;
    same.delta_n.assign(plan.delta_n.size(), 0);
    baselines.push_back(Measure(space, same, "same"));
  }
  const Spot spot = SpotOf(space, plan);
  baselines.push_back(Measure(space, IsGeoPipe(plan) ? plan : BestGeoPipe(space, {spot}, searched, seed), "same"));
  for (const Variant& variant : kFixedVariants) {
    if (std::optional<Baseline> best = BestOfVariant(space, variant, plan.layers, std::nullopt)) {
      baselines.push_back(*std::move(best));
    }
  }
  // What a search over ΔN found is geopipe's best already.
  const bool is_best = IsGeoPipe(searched) && space.searches_delta_n();
  const Candidate best = is_best ? searched : BestGeoPipe(space, Spots(space, plan.layers), searched, seed);
  baselines.push_back(Measure(space, best, "best"));
  return baselines;
}

namespace {

// The best b, s, recompute mode and schedule of one shape, when it fits and is better than `best`; with `any`, also
// when it does not fit.
void TryShape(const PlanRequest& request, const CostSource& source, const Shape& shape, bool any,
              std::optional<Baseline>& best) {
  const JobSpec job = JobOf(request.job, shape);
  absl::StatusOr<Plan> placement = PlaceStages(job, request.cluster, shape.sites);
  if (!placement.ok()) {
    return;
  }
  const absl::StatusOr<PlanSpace> space =
      PlanSpace::Create(job, request.cluster, source, request.comm, {}, *std::move(placement));
  if (!space.ok() || (!any && space->LeastExcessBytes() > 0)) {
    return;
  }
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kGpipe}) {
    const int64_t beat_ns = best.has_value() ? best->iteration_ns : std::numeric_limits<int64_t>::max();
    std::optional<Baseline> found =
        BestOfVariant(*space, {kind, request.comm}, {}, any ? std::nullopt : std::optional(beat_ns));
    if (found.has_value() && (!best.has_value() || Better(*found, *best))) {
      best = std::move(found);
      best->scope = "single-site";
      best->site = shape.sites.front();
    }
  }
}

}  // namespace

std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request, const CostSource& source, const PlanResult& plan) {
  // All of a site's devices, whatever the pipeline over several sites is.
  PlanRequest alone = request;
  alone.job.parallelism.pipeline = 0;
  alone.job.search.schedule = ScheduleKind::kAuto;
  std::vector<std::string> sites = request.job.placement.sites;
  if (sites.empty()) {
    for (const SiteSpec& site : request.cluster.sites) {
      sites.push_back(site.name);
    }
  }
  std::optional<Baseline> best;
  for (const std::string& site : sites) {
    for (const Shape& shape : ShapesOf(alone.job, request.cluster, {site})) {
      TryShape(alone, source, shape, false, best);
    }
  }
  const bool none_fits = !best.has_value();
  for (const std::string& site : sites) {
    if (none_fits) {
      TryShape(alone, source,
               {.sites = {site}, .tensor = plan.plan.grid.tensor, .pipeline = 0, .data = plan.plan.grid.data}, true,
               best);
    }
  }
  return best.has_value() ? std::vector<Baseline>{*std::move(best)} : std::vector<Baseline>{};
}

}  // namespace geopipe
