#include "optimizer/plan/baselines.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "optimizer/plan/recompute_modes.h"
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

// (b, s) that divide the tokens, in order of their lower bound.
std::vector<std::pair<int32_t, int32_t>> PointsByBound(const PlanSpace& space) {
  std::vector<std::pair<int32_t, int32_t>> points;
  for (int32_t b = 0; b < space.genome_space().micro_batch_choices; ++b) {
    for (int32_t s = 0; s < space.genome_space().sequence_choices; ++s) {
      if (space.Divides(b, s)) {
        points.emplace_back(b, s);
      }
    }
  }
  std::stable_sort(points.begin(), points.end(), [&](const auto& x, const auto& y) {
    return space.LowerBoundNs(x.first, x.second) < space.LowerBoundNs(y.first, y.second);
  });
  return points;
}

std::optional<Baseline> BestOfVariant(const PlanSpace& space, Variant variant) {
  std::optional<Baseline> best;
  for (const auto& [b, s] : PointsByBound(space)) {
    if (best.has_value() && best->fits && space.LowerBoundNs(b, s) >= best->iteration_ns) {
      continue;
    }
    const Candidate candidate{variant.schedule, variant.comm, b, s, std::vector<int32_t>(space.crossings(), 0)};
    if (best.has_value() && best->fits && space.Tightest(candidate).excess_bytes() > 0) {
      continue;
    }
    Baseline found = Measure(space, candidate, "best");
    if (!best.has_value() || Better(found, *best)) {
      best = std::move(found);
    }
  }
  return best;
}

// geopipe's best within one b and s, or over all of them when both are absent.
Candidate BestGeoPipe(const PlanSpace& space, std::optional<std::pair<int32_t, int32_t>> point, uint64_t seed) {
  const int32_t max_delta_n = space.job().search.max_delta_n;
  SearchProblem problem = space.Problem();
  problem.space.kind_uses_delta_n = {true};
  problem.space.crossings = space.crossings();
  const auto spell_out = [&](const Genome& genome) {
    return Candidate{ScheduleKind::kGeoPipe, CommMode::kNonBlocking, point ? point->first : genome.micro_batch,
                     point ? point->second : genome.sequence, genome.delta_n};
  };
  if (point.has_value()) {
    problem.space.micro_batch_choices = 1;
    problem.space.sequence_choices = 1;
  }
  problem.space.max_delta_n = max_delta_n;
  problem.seeds.clear();
  problem.repair = nullptr;
  problem.lower_bound_ns = [&](const Genome& genome) {
    const Candidate candidate = spell_out(genome);
    return space.LowerBoundNs(candidate.micro_batch, candidate.sequence);
  };
  problem.evaluate = [&](std::span<const Genome> genomes) {
    std::vector<Fitness> fitness;
    for (const Genome& genome : genomes) {
      const Candidate candidate = spell_out(genome);
      if (!space.Divides(candidate.micro_batch, candidate.sequence)) {
        fitness.push_back({.feasible = false, .iteration_ns = 0, .excess = std::numeric_limits<int64_t>::max()});
        continue;
      }
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
    const Candidate same{variant.schedule, variant.comm, plan.micro_batch, plan.sequence,
                         std::vector<int32_t>(space.crossings(), 0)};
    baselines.push_back(Measure(space, same, "same"));
  }
  const std::pair<int32_t, int32_t> point{plan.micro_batch, plan.sequence};
  baselines.push_back(Measure(space, plan_is_geopipe ? plan : BestGeoPipe(space, point, seed), "same"));
  for (const Variant& variant : kFixedVariants) {
    if (std::optional<Baseline> best = BestOfVariant(space, variant)) {
      baselines.push_back(*std::move(best));
    }
  }
  // A geopipe plan found by search is geopipe's best already.
  const bool searched = space.genome_space().crossings == space.crossings();
  baselines.push_back(
      Measure(space, plan_is_geopipe && searched ? plan : BestGeoPipe(space, std::nullopt, seed), "best"));
  return baselines;
}

namespace {

// The best b, s and schedule of one site.
std::optional<Baseline> BestOnSite(const PlanRequest& request, const JobSpec& job, const std::string& site,
                                   Recompute recompute) {
  absl::StatusOr<Placement> placement = PlaceStages(job, request.cluster, {site});
  if (!placement.ok()) {
    return std::nullopt;
  }
  const Profile* profile = request.profile.has_value() ? &*request.profile : nullptr;
  const absl::StatusOr<PlanSpace> space =
      PlanSpace::Create(job, request.cluster, profile, request.comm, {}, *std::move(placement), recompute);
  if (!space.ok()) {
    return std::nullopt;
  }
  std::optional<Baseline> best;
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kGpipe}) {
    std::optional<Baseline> found = BestOfVariant(*space, {kind, request.comm});
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

std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request) {
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
    for (const Recompute recompute : RecomputeModes(job)) {
      std::optional<Baseline> found = BestOnSite(request, job, site, recompute);
      const bool fits = found.has_value() && found->fits;
      if (found.has_value() && (!best.has_value() || Better(*found, *best))) {
        best = std::move(found);
      }
      if (fits) {
        break;  // the modes are in order of their cost
      }
    }
  }
  return best.has_value() ? std::vector<Baseline>{*std::move(best)} : std::vector<Baseline>{};
}

}  // namespace geopipe
