#include "optimizer/plan/baselines.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

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

// A recompute mode that the job allows, and b and s that divide the tokens.
struct Spot {
  int32_t mode = 0;
  int32_t micro_batch = 0;
  int32_t sequence = 0;
};

std::vector<Spot> Spots(const PlanSpace& space) {
  std::vector<Spot> spots;
  const std::vector<Gene>& genes = space.genome_space().genes;
  for (int32_t mode = 0; mode <= genes[PlanSpace::kRecompute].greatest; ++mode) {
    for (int32_t b = 0; b <= genes[PlanSpace::kMicroBatch].greatest; ++b) {
      for (int32_t s = 0; s <= genes[PlanSpace::kSequence].greatest; ++s) {
        if (space.Divides(b, s)) {
          spots.push_back({mode, b, s});
        }
      }
    }
  }
  return spots;
}

Candidate CandidateAt(const PlanSpace& space, const Variant& variant, const Spot& spot) {
  return {.schedule = variant.schedule,
          .comm = variant.comm,
          .recompute = space.modes()[spot.mode],
          .micro_batch = spot.micro_batch,
          .sequence = spot.sequence,
          .layers = {},
          .delta_n = std::vector<int32_t>(space.crossings(), 0)};
}

// The variant's best spot, with these layers; when empty, with those that balance each spot.
std::optional<Baseline> BestOfVariant(const PlanSpace& space, const Variant& variant,
                                      const std::vector<int32_t>& layers) {
  std::vector<std::pair<int64_t, Candidate>> candidates;  // lower bound first
  for (const Spot& spot : Spots(space)) {
    Candidate candidate = CandidateAt(space, variant, spot);
    candidate.layers = layers.empty() ? space.BalancedLayers(candidate) : layers;
    candidates.emplace_back(space.BoundNs(candidate), std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::optional<Baseline> best;
  for (const auto& [bound_ns, candidate] : candidates) {
    const bool fits = best.has_value() && best->fits;
    if (fits && (bound_ns >= best->iteration_ns || space.Tightest(candidate).excess_bytes() > 0)) {
      continue;
    }
    Baseline found = Measure(space, candidate, "best");
    if (!best.has_value() || Better(found, *best)) {
      best = std::move(found);
    }
  }
  return best;
}

// geopipe's best over these spots, with the plan's layers.
Candidate BestGeoPipe(const PlanSpace& space, const std::vector<Spot>& spots, const Candidate& plan, uint64_t seed) {
  SearchProblem problem;
  problem.space.genes = {{.role = GeneRole::kChoice, .least = 0, .greatest = static_cast<int32_t>(spots.size()) - 1}};
  for (int32_t crossing = 0; crossing < space.crossings(); ++crossing) {
    problem.space.genes.push_back(
        {.role = GeneRole::kOrdinal, .least = 0, .greatest = space.job().search.max_delta_n, .rest = 0});
  }
  const auto spell_out = [&](std::span<const int32_t> genome) {
    Candidate candidate = CandidateAt(space, {ScheduleKind::kGeoPipe, CommMode::kNonBlocking}, spots[genome.front()]);
    candidate.layers = plan.layers;
    std::copy(genome.begin() + 1, genome.end(), candidate.delta_n.begin());
    return candidate;
  };
  problem.lower_bound_ns = [&](std::span<const int32_t> genes) {
    if (genes.size() == problem.space.genes.size()) {
      return space.BoundNs(spell_out(genes));
    }
    const Spot& spot = spots[genes.front()];
    return space.LowerBoundNs(Genome{0, spot.mode, spot.micro_batch, spot.sequence});
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
  const SearchOutcome outcome = GeneticSearch(problem, {.seed = seed, .max_evaluations = kGeoPipeEvaluations});
  return spell_out(outcome.evaluated.front().genome);
}

}  // namespace

std::vector<Baseline> ScheduleBaselines(const PlanSpace& space, const Candidate& plan, uint64_t seed) {
  const bool plan_is_geopipe = plan.schedule == ScheduleKind::kGeoPipe && plan.comm == CommMode::kNonBlocking;
  std::vector<Baseline> baselines;
  for (const Variant& variant : kFixedVariants) {
    Candidate same = plan;
    same.schedule = variant.schedule;
    same.comm = variant.comm;
    same.delta_n.assign(plan.delta_n.size(), 0);
    baselines.push_back(Measure(space, same, "same"));
  }
  const auto mode = std::find(space.modes().begin(), space.modes().end(), plan.recompute) - space.modes().begin();
  const Spot spot{static_cast<int32_t>(mode), plan.micro_batch, plan.sequence};
  baselines.push_back(Measure(space, plan_is_geopipe ? plan : BestGeoPipe(space, {spot}, plan, seed), "same"));
  for (const Variant& variant : kFixedVariants) {
    if (std::optional<Baseline> best = BestOfVariant(space, variant, plan.layers)) {
      baselines.push_back(*std::move(best));
    }
  }
  // A geopipe plan found by search is geopipe's best already.
  baselines.push_back(
      Measure(space, plan_is_geopipe && space.searches_delta_n() ? plan : BestGeoPipe(space, Spots(space), plan, seed),
              "best"));
  return baselines;
}

namespace {

// The best b, s, recompute mode and schedule of one site.
std::optional<Baseline> BestOnSite(const PlanRequest& request, const CostSource& source, const JobSpec& job,
                                   const std::string& site) {
  absl::StatusOr<Placement> placement = PlaceStages(job, request.cluster, {site});
  if (!placement.ok()) {
    return std::nullopt;
  }
  const absl::StatusOr<PlanSpace> space =
      PlanSpace::Create(job, request.cluster, source, request.comm, {}, *std::move(placement));
  if (!space.ok()) {
    return std::nullopt;
  }
  std::optional<Baseline> best;
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kGpipe}) {
    std::optional<Baseline> found = BestOfVariant(*space, {kind, request.comm}, {});
    if (found.has_value() && (!best.has_value() || Better(*found, *best))) {
      best = std::move(found);
    }
  }
  if (best.has_value()) {
    best->scope = "single-site";
    best->site = site;
  }
  return best;
}

}  // namespace

std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request, const CostSource& source) {
  // All of a site's devices, whatever the pipeline over several sites is.
  JobSpec job = request.job;
  job.parallelism.pipeline = 0;
  job.search.schedule = "auto";
  std::vector<std::string> sites = job.placement.sites;
  if (sites.empty()) {
    for (const SiteSpec& site : request.cluster.sites) {
      sites.push_back(site.name);
    }
  }
  std::optional<Baseline> best;
  for (const std::string& site : sites) {
    std::optional<Baseline> found = BestOnSite(request, source, job, site);
    if (found.has_value() && (!best.has_value() || Better(*found, *best))) {
      best = std::move(found);
    }
  }
  return best.has_value() ? std::vector<Baseline>{*std::move(best)} : std::vector<Baseline>{};
}

}  // namespace geopipe
