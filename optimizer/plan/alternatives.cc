#include "optimizer/plan/alternatives.h"

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "optimizer/plan/report/replica_timing.h"
#include "optimizer/plan/space/placement.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSitesNamed = 3;

// A site that can train the model by itself, and its speed.
struct AbleSite {
  std::string name;
  double tokens_per_s = 0;
};

using Sites = std::vector<AbleSite>;

std::vector<std::string> NamesOf(const Sites& sites) {
  std::vector<std::string> names;
  for (const AbleSite& site : sites) {
    names.push_back(site.name);
  }
  return names;
}

double SpeedOf(const Sites& sites) {
  return std::accumulate(sites.begin(), sites.end(), 0.0,
                         [](double sum, const AbleSite& site) { return sum + site.tokens_per_s; });
}

double TokensPerSecond(int64_t tokens, int64_t iteration_ns) {
  return iteration_ns == 0 ? 0 : static_cast<double>(tokens) / (static_cast<double>(iteration_ns) / 1e9);
}

// Divides `tokens` in proportion to the sites' speeds, in multiples of `unit`, each at least one; by largest remainder,
// earlier sites first among equals. Empty when there are too few units.
std::vector<int64_t> SharesOf(const Sites& sites, int64_t tokens, int64_t unit) {
  const int64_t units = tokens / unit;
  if (units < std::ssize(sites)) {
    return {};
  }
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> remainders;  // negated, site
  int64_t left = units;
  for (size_t i = 0; i < sites.size(); ++i) {
    // Shares are exactly in proportion where that is at least one.
    const double exact = static_cast<double>(units) * sites[i].tokens_per_s / SpeedOf(sites);
    shares.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact + 1e-9)));
    remainders.emplace_back(static_cast<double>(shares.back()) - exact, i);
    left -= shares.back();
  }
  std::stable_sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) {
    ++shares[remainders[i].second];
  }
  for (; left < 0; ++left) {  // single units for slow sites came on top: from the largest
    --*std::ranges::max_element(shares);
  }
  for (int64_t& share : shares) {
    share *= unit;
  }
  return shares;
}

// Tokens of the smallest micro-batch that divides those of an iteration; all of them if none does.
int64_t LeastMicroBatch(const JobSpec& job) {
  int64_t least = job.training.tokens_per_iteration;
  for (const int64_t size : job.search.micro_batch_size) {
    for (const int64_t length : job.search.sequence_length) {
      least = job.training.tokens_per_iteration % (size * length) == 0 ? std::min(least, size * length) : least;
    }
  }
  return least;
}

// Divisions of the tokens to try: equal if all sites are equally fast, else in units of which every site has about 2, 8
// and 64: coarse units divide by more micro-batch sizes and degrees, fine ones are closer to the speeds.
std::vector<std::vector<int64_t>> Divisions(const Sites& sites, const JobSpec& job) {
  const int64_t tokens = job.training.tokens_per_iteration;
  const auto count = std::ssize(sites);
  const bool are_alike =
      std::ranges::all_of(sites, [&](const AbleSite& site) { return site.tokens_per_s == sites.front().tokens_per_s; });
  const int64_t micro_batch = LeastMicroBatch(job);
  if (are_alike && tokens % (count * micro_batch) == 0) {
    return {std::vector<int64_t>(sites.size(), tokens / count)};
  }
  const int64_t units = tokens / micro_batch;   // the most that there can be
  std::vector<std::vector<int64_t>> divisions;  // the first ones where time is short
  for (const int64_t each : {8, 64, 2}) {
    int64_t parts = units;
    for (int64_t divisor = 1; divisor * divisor <= units; ++divisor) {
      for (const int64_t candidate : {divisor, units / divisor}) {
        if (units % divisor == 0 && candidate >= each * count) {
          parts = std::min(parts, candidate);
        }
      }
    }
    std::vector<int64_t> shares = SharesOf(sites, tokens, units / parts * micro_batch);
    if (!shares.empty() && std::ranges::find(divisions, shares) == divisions.end()) {
      divisions.push_back(std::move(shares));
    }
  }
  return divisions;
}

// Replicas at some sites with a division of the tokens.
struct Replicas {
  std::vector<const SitePlan*> plans;
  ReducedIteration reduced;
};

class Finder {
 public:
  Finder(SitePlanner& planner, const ClusterSpec& cluster, const PlanResult* plan)
      : planner_(planner),
        job_(planner.request().job),
        cluster_(cluster),
        plan_(plan),
        bucket_bytes_(BucketBytes(job_)),
        gradient_bytes_(std::accumulate(bucket_bytes_.begin(), bucket_bytes_.end(), int64_t{0})) {}

  Alternatives Find() {
    FindAbleSites();
    Alternatives alternatives;
    alternatives.all.push_back(SingleSite());
    alternatives.all.push_back(Pipeline());
    alternatives.all.push_back(SiteReplicas());
    alternatives.all.push_back(LocalSteps(alternatives.all.back()));
    return alternatives;
  }

 private:
  bool PlanHasSeveralSites() const {
    return plan_ != nullptr && std::ranges::any_of(plan_->plan.pipeline_ranks, [&](const PipelineRankPlan& rank) {
             return SiteOfGroup(rank.site) != SiteOfGroup(plan_->plan.pipeline_ranks.front().site);
           });
  }

  std::vector<std::string> SiteNames() const {
    return job_.placement.sites.empty() ? cluster_.SiteNames() : job_.placement.sites;
  }

  void FindAbleSites() {
    for (const std::string& site : SiteNames()) {
      absl::StatusOr<const SitePlan*> alone = planner_.At(site, job_.training.tokens_per_iteration);
      if (!alone.ok()) {
        unable_ = unable_.empty() ? fmt::format("{} alone: {}", site, std::string(alone.status().message())) : unable_;
        continue;
      }
      const Prediction& prediction = (*alone)->result.prediction;
      able_.push_back({site, prediction.tokens_per_s});
      if (fastest_ == nullptr || prediction.iteration_ns < fastest_->result.prediction.iteration_ns) {
        fastest_ = *alone;
      }
    }
  }

  void TakePlan(Alternative& alternative) const {
    const Prediction& prediction = plan_->prediction;
    alternative.is_plan = true;
    alternative.iteration_ns = prediction.iteration_ns;
    alternative.tokens_per_s = prediction.tokens_per_s;
    alternative.wan_bytes_per_iteration = prediction.wan_bytes_per_iteration;
    alternative.devices = plan_->plan.grid.size();
  }

  static void TakeShare(const SitePlan& planned, Alternative& alternative) {
    alternative.shares.push_back({planned.site, planned.tokens, planned.result.plan, planned.result.prediction});
    alternative.devices += planned.result.plan.grid.size();
  }

  Alternative SingleSite() const {
    Alternative single{.kind = AlternativeKind::kSingleSite};
    if (plan_ != nullptr && !PlanHasSeveralSites()) {
      TakePlan(single);
    } else if (fastest_ == nullptr) {
      single.missing = unable_;
    } else {
      TakeShare(*fastest_, single);
      single.iteration_ns = fastest_->result.prediction.iteration_ns;
      single.tokens_per_s = fastest_->result.prediction.tokens_per_s;
    }
    return single;
  }

  Alternative Pipeline() const {
    Alternative pipeline{.kind = AlternativeKind::kPipeline};
    if (PlanHasSeveralSites()) {
      TakePlan(pipeline);
    } else if (plan_ == nullptr) {
      pipeline.missing = "no plan was found";
    } else if (SiteNames().size() < 2) {
      pipeline.missing = "the job has one site";
    } else {
      pipeline.missing = "no plan over several sites is faster than one site";
    }
    return pipeline;
  }

  // Estimate in seconds, ignoring the part that the backward hides; nullopt: links do not join the sites, or it is not
  // below `limit_s`.
  std::optional<double> EstimateSeconds(const Sites& sites, double limit_s) const {
    const double work_s = static_cast<double>(job_.training.tokens_per_iteration) / SpeedOf(sites);
    if (work_s >= limit_s) {
      return std::nullopt;
    }
    const absl::StatusOr<SiteReduction> reduction = ChooseSiteReduction(cluster_, NamesOf(sites), gradient_bytes_);
    if (!reduction.ok()) {
      return std::nullopt;
    }
    return work_s + static_cast<double>(reduction->AloneNs(gradient_bytes_)) / 1e9;
  }

  // Every group of sites that the links of some bandwidth or more join, larger ones first, in the order of the cluster.
  std::vector<Sites> JoinedGroups() const {
    std::map<std::string_view, size_t> index;
    for (const AbleSite& site : able_) {
      index.emplace(site.name, index.size());
    }
    std::vector<const LinkSpec*> links;
    for (const LinkSpec& link : cluster_.links) {
      if (!link.inside() && index.contains(SiteOfGroup(link.site_a)) && index.contains(SiteOfGroup(link.site_b))) {
        links.push_back(&link);
      }
    }
    std::ranges::stable_sort(links, std::greater<>(), &LinkSpec::bandwidth_bytes_per_s);
    std::vector<size_t> group_of(able_.size());  // the first site of each one's
    std::iota(group_of.begin(), group_of.end(), size_t{0});
    std::vector<std::vector<size_t>> groups;
    std::set<size_t> grown;
    for (size_t i = 0; i < links.size(); ++i) {
      const size_t a = group_of[index.at(SiteOfGroup(links[i]->site_a))];
      const size_t b = group_of[index.at(SiteOfGroup(links[i]->site_b))];
      if (a != b) {
        std::ranges::replace(group_of, std::max(a, b), std::min(a, b));
        grown.erase(std::max(a, b));
        grown.insert(std::min(a, b));
      }
      if (i + 1 < links.size() && links[i + 1]->bandwidth_bytes_per_s == links[i]->bandwidth_bytes_per_s) {
        continue;
      }
      for (const size_t group : std::exchange(grown, {})) {
        std::vector<size_t>& members = groups.emplace_back();
        for (size_t site = 0; site < able_.size(); ++site) {
          if (group_of[site] == group) {
            members.push_back(site);
          }
        }
      }
    }
    std::vector<Sites> joined;
    std::ranges::reverse(groups);
    for (const std::vector<size_t>& members : groups) {
      Sites& sites = joined.emplace_back();
      for (const size_t site : members) {
        sites.push_back(able_[site]);
      }
    }
    return joined;
  }

  // The best sites: of all selections of a few; else of those that links of some bandwidth join, left out one by one as
  // long as that helps.
  Sites ChooseSites() const {
    Sites best;
    std::optional<double> best_s;
    const auto try_sites = [&](Sites sites) {
      const double limit_s = best_s.value_or(std::numeric_limits<double>::infinity());
      const std::optional<double> estimate_s = sites.size() < 2 ? std::nullopt : EstimateSeconds(sites, limit_s);
      if (estimate_s.has_value() && *estimate_s < limit_s) {
        best = std::move(sites);
        best_s = estimate_s;
        return true;
      }
      return false;
    };
    if (able_.size() <= kMaxPermutedSites) {
      for (size_t chosen = size_t{1} << able_.size(); chosen-- > 0;) {
        Sites sites;
        for (size_t i = 0; i < able_.size(); ++i) {
          if ((chosen >> i & 1) != 0) {
            sites.push_back(able_[i]);
          }
        }
        try_sites(std::move(sites));
      }
      return best;
    }
    for (Sites& joined : JoinedGroups()) {
      try_sites(std::move(joined));
    }
    for (bool improved = best_s.has_value(); improved;) {
      std::vector<Sites> fewer(best.size(), best);
      for (size_t i = 0; i < fewer.size(); ++i) {
        fewer[i].erase(fewer[i].begin() + static_cast<std::ptrdiff_t>(i));
      }
      improved = std::ranges::count_if(fewer, try_sites) > 0;  // all are tried
    }
    return best;
  }

  // Plans of all sites at one sequence length; 0: the best for each.
  absl::StatusOr<std::vector<const SitePlan*>> PlansOf(const Sites& sites, const std::vector<int64_t>& shares,
                                                       int64_t sequence_length) {
    std::vector<const SitePlan*> plans;
    for (size_t i = 0; i < sites.size(); ++i) {
      GP_ASSIGN_OR_RETURN(const SitePlan* planned, planner_.At(sites[i].name, shares[i], sequence_length));
      plans.push_back(planned);
    }
    return plans;
  }

  void Compare(const std::vector<const SitePlan*>& plans, const SiteReduction& reduction,
               std::optional<Replicas>& best) const {
    std::vector<ReplicaTiming> timings;
    timings.reserve(plans.size());
    for (const SitePlan* planned : plans) {
      timings.push_back(planned->timing);
    }
    ReducedIteration reduced = ReduceOverSites(timings, reduction, bucket_bytes_);
    if (!best.has_value() || reduced.iteration_ns < best->reduced.iteration_ns) {
      best = {plans, std::move(reduced)};
    }
  }

  // The best division of the tokens.
  absl::StatusOr<Replicas> PlanReplicas(const Sites& sites, const SiteReduction& reduction) {
    std::optional<Replicas> best;
    absl::Status first_error = absl::FailedPreconditionError("the tokens cannot be divided over the sites");
    const std::function<bool()>& should_stop = planner_.request().should_stop;
    for (const std::vector<int64_t>& shares : Divisions(sites, job_)) {
      if (best.has_value() && should_stop && should_stop()) {
        break;
      }
      const auto any = PlansOf(sites, shares, 0);
      if (!any.ok()) {
        first_error = best.has_value() ? first_error : any.status();
        continue;
      }
      std::set<int64_t> lengths;
      for (const SitePlan* planned : *any) {
        lengths.insert(planned->result.plan.sequence_length);
      }
      if (lengths.size() == 1) {
        Compare(*any, reduction, best);
        continue;
      }
      for (const int64_t length : lengths) {
        if (const auto same = PlansOf(sites, shares, length); same.ok()) {
          Compare(*same, reduction, best);
        }
      }
    }
    return best.has_value() ? absl::StatusOr<Replicas>(*std::move(best)) : first_error;
  }

  Alternative SiteReplicas() {
    Alternative replicas{.kind = AlternativeKind::kSiteReplicas};
    if (SiteNames().size() < 2) {
      replicas.missing = "the job has one site";
      return replicas;
    }
    if (able_.size() < 2) {
      replicas.missing = unable_;
      return replicas;
    }
    const Sites sites = ChooseSites();
    const absl::StatusOr<SiteReduction> reduction =
        ChooseSiteReduction(cluster_, NamesOf(sites.empty() ? able_ : sites), gradient_bytes_);
    if (!reduction.ok()) {
      replicas.missing = std::string(reduction.status().message());
      return replicas;
    }
    const absl::StatusOr<Replicas> found = PlanReplicas(sites, *reduction);
    if (!found.ok()) {
      replicas.missing = std::string(found.status().message());
      return replicas;
    }
    for (const SitePlan* planned : found->plans) {
      TakeShare(*planned, replicas);
    }
    replicas.iteration_ns = found->reduced.iteration_ns;
    replicas.tokens_per_s = TokensPerSecond(job_.training.tokens_per_iteration, replicas.iteration_ns);
    replicas.wan_bytes_per_iteration = reduction->WanBytes(gradient_bytes_);
    replicas.reduction = *reduction;
    replicas.reduced_bytes = gradient_bytes_;
    replicas.reduction_ns = reduction->AloneNs(gradient_bytes_);
    replicas.exposed_ns = found->reduced.exposed_ns;
    return replicas;
  }

  Alternative LocalSteps(const Alternative& replicas) const {
    Alternative local = replicas;
    local.kind = AlternativeKind::kLocalSteps;
    if (!local.found()) {
      return local;
    }
    local.reduced_bytes = ParameterCount(job_.model) * kOuterGradientBytes;
    const absl::StatusOr<SiteReduction> reduction =
        ChooseSiteReduction(cluster_, replicas.reduction->sites, local.reduced_bytes);
    if (!reduction.ok()) {
      local = {.kind = AlternativeKind::kLocalSteps, .missing = std::string(reduction.status().message())};
      return local;
    }
    local.reduction = *reduction;
    local.reduction_ns = reduction->AloneNs(local.reduced_bytes);
    local.exposed_ns = (local.reduction_ns + kLocalSteps - 1) / kLocalSteps;
    local.iteration_ns = replicas.iteration_ns - replicas.exposed_ns + local.exposed_ns;
    local.tokens_per_s = TokensPerSecond(job_.training.tokens_per_iteration, local.iteration_ns);
    local.wan_bytes_per_iteration = reduction->WanBytes(local.reduced_bytes) / kLocalSteps;
    return local;
  }

  SitePlanner& planner_;
  const JobSpec& job_;
  const ClusterSpec& cluster_;
  const PlanResult* plan_;
  std::vector<int64_t> bucket_bytes_;
  int64_t gradient_bytes_;
  Sites able_;
  std::string unable_;  // the first that is not, and why
  const SitePlan* fastest_ = nullptr;
};

}  // namespace

std::string_view AlternativeName(AlternativeKind kind) {
  static constexpr std::array<std::string_view, 4> kNames{"single-site", "pipeline", "site-replicas", "local-steps"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Alternative::SitesText() const {
  if (shares.size() > kMaxSitesNamed) {
    return fmt::format("{} sites", shares.size());
  }
  std::vector<std::string> names;
  for (const SiteShare& share : shares) {
    names.push_back(share.site);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

const Alternative* Alternatives::Fastest() const {
  const Alternative* fastest = nullptr;
  for (const Alternative& each : all) {
    if (!each.found() || each.changes_training()) {
      continue;
    }
    const bool is_faster = fastest == nullptr || each.iteration_ns < fastest->iteration_ns ||
                           (each.iteration_ns == fastest->iteration_ns && each.is_plan);
    fastest = is_faster ? &each : fastest;
  }
  return fastest;
}

std::optional<Lead> LeadOf(const Alternatives& alternatives) {
  const Alternative* fastest = alternatives.Fastest();
  if (fastest == nullptr) {
    return std::nullopt;
  }
  Lead lead{.kind = fastest->kind};
  for (const Alternative& other : alternatives.all) {
    if (&other != fastest && other.found() && !other.changes_training()) {
      const double saved = 1 - static_cast<double>(fastest->iteration_ns) / static_cast<double>(other.iteration_ns);
      lead.saved = std::min(saved, lead.saved.value_or(saved));
    }
  }
  return lead;
}

Alternatives FindAlternatives(SitePlanner& sites, const ClusterSpec& cluster, const PlanResult* plan) {
  return Finder(sites, cluster, plan).Find();
}

void PutAmongBaselines(const Alternatives& alternatives, PlanResult& result) {
  for (const auto& [kind, scope] : {std::pair(AlternativeKind::kSiteReplicas, BaselineScope::kSiteReplicas),
                                    std::pair(AlternativeKind::kSingleSite, BaselineScope::kSingleSite)}) {
    const Alternative& alternative = alternatives.Of(kind);
    if (!alternative.found()) {
      continue;
    }
    std::erase_if(result.baselines, [scope = scope](const Baseline& baseline) { return baseline.scope == scope; });
    // The row of replicas shows the slowest site's plan, whose devices are idle during the exposed reduction, too.
    const auto slowest = std::ranges::max_element(alternative.shares, {},
                                                  [](const SiteShare& share) { return share.prediction.iteration_ns; });
    const Plan& plan = alternative.is_plan ? result.plan : slowest->plan;
    const Prediction& prediction = alternative.is_plan ? result.prediction : slowest->prediction;
    const double busy = (1 - prediction.bubble_ratio) * static_cast<double>(prediction.iteration_ns);
    result.baselines.push_back({.schedule = plan.schedule,
                                .comm = plan.comm,
                                .scope = scope,
                                .site = alternative.is_plan ? std::string(SiteOfGroup(plan.pipeline_ranks.front().site))
                                                            : alternative.SitesText(),
                                .micro_batch_size = plan.micro_batch_size,
                                .sequence_length = plan.sequence_length,
                                .iteration_ns = alternative.iteration_ns,
                                .bubble_ratio = 1 - busy / static_cast<double>(alternative.iteration_ns)});
  }
}

}  // namespace geopipe
