#include "optimizer/plan/fewer_sites.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/plan/bound/cluster_bound.h"
#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/placement.h"

namespace geopipe {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
// With more sites, the choices are too many.
constexpr size_t kMaxSites = 6;
// Percentage that the steps after the search of the grids may still gain, about.
constexpr int64_t kPolishPercent = 2;

// A choice of sites, one bit for each.
using Choice = uint32_t;

// All choices, larger ones first.
std::vector<Choice> ChoicesOf(size_t sites) {
  std::vector<Choice> choices;
  for (Choice choice = (Choice{1} << sites) - 1; choice > 0; --choice) {
    choices.push_back(choice);
  }
  std::ranges::stable_sort(choices, std::ranges::greater(), [](Choice choice) { return std::popcount(choice); });
  return choices;
}

ClusterSpec ClusterOf(ClusterSpec cluster, Choice choice) {
  const std::vector<std::string> names = cluster.SiteNames();
  const auto is_out = [&](std::string_view group) {
    const auto site = std::ranges::find(names, SiteOfGroup(group)) - names.begin();
    return (choice >> site & 1) == 0;
  };
  std::erase_if(cluster.sites, [&](const SiteSpec& site) { return is_out(site.name); });
  std::erase_if(cluster.links, [&](const LinkSpec& link) { return is_out(link.site_a) || is_out(link.site_b); });
  return cluster;
}

std::vector<std::string> GroupsOf(const ClusterSpec& cluster) {
  std::vector<std::string> groups;
  std::ranges::transform(cluster.sites, std::back_inserter(groups), &SiteSpec::name);
  return groups;
}

class FewerSites {
 public:
  FewerSites(const PlanRequest& request, const CostSource& source, const AllSitesSearched& all,
             const std::function<int64_t(PlanResult)>& take)
      : request_(request), source_(source), take_(take), classes_(request.cluster), best_ns_(all.iteration_ns) {
    if (TriesAllOrders(request.job, request.cluster)) {
      searched_.push_back({AllSites(), GroupsOf(request.cluster), all.cut_short});
    }
  }

  void Run() {
    for (const Choice choice : ChoicesOf(SiteCount())) {
      if (request_.should_stop && request_.should_stop()) {
        return;
      }
      if (IsOpen(choice)) {
        Try(choice);
      }
    }
  }

 private:
  struct Searched {
    Choice choice = 0;
    std::vector<std::string> groups;  // of its sites
    bool cut_short = false;           // as the first choice that costs the same was
  };

  size_t SiteCount() const { return request_.cluster.SiteNames().size(); }
  Choice AllSites() const { return (Choice{1} << SiteCount()) - 1; }

  // True when no larger choice that contains it was searched to its end.
  bool IsOpen(Choice choice) const {
    bool is_part = false;
    for (const Searched& searched : searched_) {
      if ((searched.choice & choice) == choice) {
        if (!searched.cut_short) {
          return false;
        }
        is_part = true;
      }
    }
    return is_part ? choice != AllSites() : true;
  }

  void Try(Choice choice) {
    PlanRequest fewer = request_;
    fewer.fewer_sites = fewer.weigh_memory = fewer.single_site = fewer.cluster_bound = false;
    fewer.job.search.prefer = Prefer::kSpeed;
    fewer.cluster = ClusterOf(request_.cluster, choice);
    if (!TriesAllOrders(fewer.job, fewer.cluster)) {
      return;
    }
    const std::vector<std::string> groups = GroupsOf(fewer.cluster);
    const std::vector<std::string> alike = request_.profile.has_value() ? groups : classes_.FirstLike(groups);
    if (alike != groups) {
      searched_.push_back({choice, groups, std::ranges::find(searched_, alike, &Searched::groups)->cut_short});
      return;
    }
    if (best_ns_ != kNone && ClusterBoundNs(fewer, source_, best_ns_) >= best_ns_) {
      searched_.push_back({choice, groups, false});  // nor is any part of it better
      return;
    }
    if (best_ns_ != kNone) {
      fewer.beat_ns = best_ns_ + best_ns_ / 100 * kPolishPercent;
    }
    absl::StatusOr<PlanResult> there = MakePlan(fewer);
    searched_.push_back({choice, groups, there.ok() && there->search.cut_short});
    if (there.ok()) {
      best_ns_ = take_(*std::move(there));
    }
  }

  const PlanRequest& request_;
  const CostSource& source_;
  const std::function<int64_t(PlanResult)>& take_;
  OrderClasses classes_;
  std::vector<Searched> searched_;
  int64_t best_ns_;
};

}  // namespace

void PlanAtFewerSites(const PlanRequest& request, const CostSource& source, const AllSitesSearched& all,
                      const std::function<int64_t(PlanResult)>& take) {
  if (request.fewer_sites && request.refine && request.refine_fully && request.method != SearchMethod::kExhaustive &&
      request.job.placement.sites.empty() && request.cluster.SiteNames().size() <= kMaxSites) {
    FewerSites(request, source, all, take).Run();
  }
}

}  // namespace geopipe
