#include "optimizer/plan/fewer_sites.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/plan/planner.h"
#include "optimizer/plan/space/placement.h"
#include "tests/optimizer/plan/consistency.h"
#include "tests/optimizer/plan/random_jobs.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

// The request's cluster with only these sites, where all orders are tried.
PlanRequest Alone(PlanRequest request, const std::vector<std::string>& sites) {
  const auto is_out = [&](const std::string& group) {
    return std::ranges::find(sites, std::string(SiteOfGroup(group))) == sites.end();
  };
  std::erase_if(request.cluster.sites, [&](const SiteSpec& site) { return is_out(site.name); });
  std::erase_if(request.cluster.links,
                [&](const LinkSpec& link) { return is_out(link.site_a) || is_out(link.site_b); });
  return request;
}

// A small open job whose sites, or groups of nodes, have more orders than are tried.
PlanRequest RequestWithManyOrders(Prng& prng) {
  while (true) {
    PlanRequest request = test::RandomOpenRequest(prng);
    const std::string near = request.cluster.sites.front().name;
    while (TriesAllOrders(request.job, request.cluster)) {
      SiteSpec more = request.cluster.sites.front();
      more.name = "more" + std::to_string(request.cluster.sites.size());
      request.cluster.links.push_back({near, more.name, 1'000'000, 1e9});
      request.cluster.sites.push_back(std::move(more));
    }
    request.baselines = request.cluster_bound = false;
    if (request.cluster.SiteNames().size() <= 6 && MakePlan(Alone(request, {std::string(SiteOfGroup(near))})).ok()) {
      return request;
    }
  }
}

TEST_CASE("of more sites than all orders are tried of, no plan is slower than at a part of them") {
  Prng prng(37);
  int better = 0;
  for (int index = 0; index < (kSanitized ? 1 : 3); ++index) {
    PlanRequest request = RequestWithManyOrders(prng);
    INFO("request " << index);
    const absl::StatusOr<PlanResult> all = MakePlan(request);
    REQUIRE(all.ok());
    const std::vector<std::string> names = request.cluster.SiteNames();
    for (size_t choice = 1; choice < size_t{1} << names.size(); ++choice) {
      std::vector<std::string> sites;
      for (size_t i = 0; i < names.size(); ++i) {
        if ((choice >> i & 1) != 0) {
          sites.push_back(names[i]);
        }
      }
      PlanRequest some = Alone(request, sites);
      some.refine_fully = false;
      if (sites.size() > 2 || !TriesAllOrders(some.job, some.cluster)) {
        continue;  // a few are enough
      }
      const absl::StatusOr<PlanResult> there = MakePlan(some);
      CHECK((!there.ok() || all->prediction.iteration_ns <= there->prediction.iteration_ns));
    }
    request.fewer_sites = false;
    const absl::StatusOr<PlanResult> without = MakePlan(request);
    better += !without.ok() || all->prediction.iteration_ns < without->prediction.iteration_ns ? 1 : 0;
  }
  CHECK((better > 0 || kSanitized));
}

TEST_CASE("fewer sites are not looked at where all orders of all sites were, to the end") {
  Prng prng(7);
  PlanRequest request = test::RandomOpenRequest(prng);
  while (!TriesAllOrders(request.job, request.cluster)) {
    request = test::RandomOpenRequest(prng);
  }
  const CostSource source(request.job, request.cluster, nullptr);
  int made = 0;
  const auto take = [&](const PlanResult& plan) {
    ++made;
    return plan.prediction.iteration_ns;
  };
  PlanAtFewerSites(request, source, {1'000'000'000'000, /*cut_short=*/false}, take);
  CHECK(made == 0);
  PlanAtFewerSites(request, source, {1'000'000'000'000, /*cut_short=*/true}, take);
  CHECK(made > 0);
  made = 0;
  request.job.placement.sites = request.cluster.SiteNames();
  PlanAtFewerSites(request, source, {1'000'000'000'000, /*cut_short=*/true}, take);
  CHECK(made == 0);
}

}  // namespace
}  // namespace geopipe
