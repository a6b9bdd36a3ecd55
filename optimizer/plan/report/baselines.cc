#include "optimizer/plan/report/baselines.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "optimizer/model/groups/node_groups.h"
#include "optimizer/plan/space/fit_candidate.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/plan_space.h"
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

constexpr Variant kGeoPipe{ScheduleKind::kGeoPipe, CommMode::kNonBlocking};
constexpr int64_t kGeoPipeEvaluations = 512;

Baseline Measure(const CandidateModel& model, const Candidate& candidate, BaselineScope scope) {
  const SimulationResult result = model.Run(candidate);
  return {.schedule = candidate.schedule,
          .comm = candidate.comm,
          .scope = scope,
          .site = "",
          .micro_batch_size = model.job().search.micro_batch_size[candidate.micro_batch],
          .sequence_length = model.job().search.sequence_length[candidate.sequence],
          .iteration_ns = result.iteration_ns,
          .bubble_ratio = result.bubble_ratio,
          .fits = result.fits};
}

bool Better(const Baseline& a, const Baseline& b) {
  return a.fits != b.fits ? a.fits : a.iteration_ns < b.iteration_ns;
}

// The variant with the mode, b, s and layers of `at`, and ΔN 0.
Candidate VariantAt(const Variant& variant, Candidate at) {
  at.schedule = variant.schedule;
  at.comm = variant.comm;
  std::ranges::fill(at.delta_n, 0);
  return at;
}

// Candidates of every mode, b and s, with the layers that balance them; with the plan's, too, unless these are empty.
std::vector<Candidate> CandidatesOf(const CandidateModel& model, const Variant& variant,
                                    const std::vector<int32_t>& plan_layers) {
  std::vector<Candidate> candidates;
  for (const CandidateModel::Point& point : model.points()) {
    Candidate candidate{.schedule = variant.schedule,
                        .comm = variant.comm,
                        .mode = point.mode,
                        .micro_batch = point.micro_batch,
                        .sequence = point.sequence,
                        .layers = plan_layers,
                        .delta_n = std::vector<int32_t>(model.crossings(), 0)};
    if (!plan_layers.empty()) {
      candidates.push_back(candidate);
    }
    if (plan_layers.empty() || model.splits_layers()) {
      candidate.layers = BalancedLayers(model, candidate);
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

// The variant's best candidate (see CandidatesOf), if one fits and takes less than `beat_ns`; without `beat_ns`, else
// the best that does not fit.
std::optional<Baseline> BestOfVariant(const CandidateModel& model, const Variant& variant,
                                      const std::vector<int32_t>& plan_layers, std::optional<int64_t> beat_ns) {
  std::vector<std::tuple<bool, int64_t, Candidate>> candidates;  // those that fit first, lower bound first
  for (Candidate& candidate : CandidatesOf(model, variant, plan_layers)) {
    const bool exceeds = model.Tightest(candidate).excess_bytes() > 0;
    const int64_t bound_ns = model.BoundNs(candidate);
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
    Baseline found = Measure(model, candidate, BaselineScope::kBest);
    if (!best.has_value() || Better(found, *best)) {
      best = std::move(found);
    }
  }
  return best;
}

bool IsGeoPipe(const Candidate& candidate) {
  return candidate.schedule == ScheduleKind::kGeoPipe && candidate.comm == CommMode::kNonBlocking;
}

// geopipe's best ΔN over these candidates, no worse than `known` if that is geopipe at one of them.
Candidate BestGeoPipe(const CandidateModel& model, const std::vector<Candidate>& bases, const Candidate& known,
                      uint64_t seed) {
  SearchProblem problem;
  problem.space.genes = {{.role = GeneRole::kChoice, .least = 0, .greatest = static_cast<int32_t>(bases.size()) - 1}};
  for (int32_t crossing = 0; crossing < model.crossings(); ++crossing) {
    problem.space.genes.push_back({.role = GeneRole::kOrdinal, .least = 0, .greatest = model.max_delta_n(), .rest = 0});
  }
  const auto spell_out = [&](std::span<const int32_t> genome) {
    Candidate candidate = bases[genome.front()];
    std::copy(genome.begin() + 1, genome.end(), candidate.delta_n.begin());
    return candidate;
  };
  problem.lower_bound_ns = [&](std::span<const int32_t> genes) {
    return genes.size() == problem.space.genes.size() ? model.BoundNs(spell_out(genes))
                                                      : model.PointOf(bases[genes.front()]).least_ns;
  };
  problem.repair = [&](Genome& genome) {
    Candidate candidate = spell_out(genome);
    LowerDeltaN(model, candidate);
    std::copy(candidate.delta_n.begin(), candidate.delta_n.end(), genome.begin() + 1);
  };
  problem.evaluate = [&](std::span<const Genome> genomes) {
    std::vector<Fitness> fitness;
    for (const Genome& genome : genomes) {
      const Candidate candidate = spell_out(genome);
      const int64_t excess = model.Tightest(candidate).excess_bytes();
      fitness.push_back(excess > 0 ? Fitness{.feasible = false, .iteration_ns = 0, .excess = excess}
                                   : Fitness{.feasible = true, .iteration_ns = model.Run(candidate).iteration_ns});
    }
    return fitness;
  };
  const auto at = std::ranges::find_if(bases, [&](const Candidate& base) {
    return base.mode == known.mode && std::tie(base.micro_batch, base.sequence, base.layers) ==
                                          std::tie(known.micro_batch, known.sequence, known.layers);
  });
  if (IsGeoPipe(known) && at != bases.end()) {
    Genome start{static_cast<int32_t>(at - bases.begin())};
    start.insert(start.end(), known.delta_n.begin(), known.delta_n.end());
    problem.seeds = {std::move(start)};
  }
  const SearchOutcome outcome = GeneticSearch(problem, {.seed = seed, .max_evaluations = kGeoPipeEvaluations});
  return spell_out(outcome.evaluated.front().genome);
}

}  // namespace

std::vector<Baseline> ScheduleBaselines(const CandidateModel& model, const Candidate& plan, const Candidate& searched,
                                        bool searched_delta_n, uint64_t seed) {
  std::vector<Baseline> baselines;
  baselines.reserve(kFixedVariants.size() + 2);
  for (const Variant& variant : kFixedVariants) {
    baselines.push_back(Measure(model, VariantAt(variant, plan), BaselineScope::kSame));
  }
  baselines.push_back(Measure(model,
                              IsGeoPipe(plan) ? plan : BestGeoPipe(model, {VariantAt(kGeoPipe, plan)}, searched, seed),
                              BaselineScope::kSame));
  for (const Variant& variant : kFixedVariants) {
    if (std::optional<Baseline> best = BestOfVariant(model, variant, plan.layers, std::nullopt)) {
      baselines.push_back(*std::move(best));
    }
  }
  // The result of a search over ΔN is geopipe's best already.
  const bool is_best = IsGeoPipe(searched) && searched_delta_n;
  const Candidate best =
      is_best ? searched : BestGeoPipe(model, CandidatesOf(model, kGeoPipe, plan.layers), searched, seed);
  baselines.push_back(Measure(model, best, BaselineScope::kBest));
  return baselines;
}

namespace {

// Tries the best b, s, mode and schedule of one shape; takes it when it fits and is better than `best`, with `any` also
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
        BestOfVariant(space->model(), {kind, request.comm}, {}, any ? std::nullopt : std::optional(beat_ns));
    if (found.has_value() && (!best.has_value() || Better(*found, *best))) {
      best = std::move(found);
      best->scope = BaselineScope::kSingleSite;
      best->site = std::string(SiteOfGroup(shape.sites.front()));
    }
  }
}

// Sites that the job may use, each once.
std::vector<std::string> SitesOf(const PlanRequest& request) {
  return request.job.placement.sites.empty() ? request.cluster.SiteNames() : request.job.placement.sites;
}

// The request for all of a site's devices, whatever the pipeline over several sites is.
PlanRequest AloneAt(const PlanRequest& request) {
  PlanRequest alone = request;
  alone.job.parallelism.pipeline = 0;
  alone.job.search.schedule = ScheduleKind::kAuto;
  return alone;
}

}  // namespace

std::vector<Baseline> SingleSiteBaseline(const PlanRequest& request, const CostSource& source, const PlanResult& plan) {
  PlanRequest alone = AloneAt(request);
  std::vector<std::string> sites;
  for (const std::string& name : SitesOf(request)) {
    // Sites that are alike cost the same if costs are from figures.
    const bool is_known = source.profile() == nullptr && std::ranges::any_of(sites, [&](const std::string& other) {
                            return AreAlike(request.cluster, name, other);
                          });
    if (!request.cluster.GroupsOf(name).empty() && !is_known) {
      sites.push_back(name);
    }
  }
  std::optional<Baseline> best;
  const auto orders_at = [&](const std::string& site) {
    alone.job.placement.sites = {site};
    return CandidateSiteOrders(alone.job, request.cluster);
  };
  for (const std::string& site : sites) {
    for (const SiteOrder& order : orders_at(site)) {
      for (const Shape& shape : ShapesOf(alone.job, request.cluster, order)) {
        TryShape(alone, source, shape, false, best);
      }
    }
  }
  const bool none_fits = !best.has_value();
  for (const std::string& site : sites) {
    for (const SiteOrder& order : none_fits ? orders_at(site) : std::vector<SiteOrder>{}) {
      TryShape(alone, source,
               {.sites = order, .tensor = plan.plan.grid.tensor, .pipeline = 0, .data = plan.plan.grid.data}, true,
               best);
    }
  }
  return best.has_value() ? std::vector<Baseline>{*std::move(best)} : std::vector<Baseline>{};
}

}  // namespace geopipe
