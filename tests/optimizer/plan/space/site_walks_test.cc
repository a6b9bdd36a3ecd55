#include "optimizer/plan/space/site_walks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

// Twelve sites, all joined; the links among the last six are ten times as fast.
PlanRequest TwoHalves() {
  PlanRequest request = test::PaperRequest();
  const SiteSpec site = request.cluster.sites.front();
  request.cluster = {};
  for (int i = 0; i < 12; ++i) {
    request.cluster.sites.push_back(site);
    request.cluster.sites.back().name = "site" + std::to_string(i);
    for (int j = 0; j < i; ++j) {
      const double bytes_per_s = j >= 6 ? 1e10 : 1e9;
      request.cluster.links.push_back({"site" + std::to_string(j), "site" + std::to_string(i), 1'000'000, bytes_per_s});
    }
  }
  request.job.parallelism.pipeline = 0;
  return request;
}

TEST_CASE("walks keep to links that carry messages as fast as devices work") {
  const PlanRequest request = TwoHalves();
  const CostSource source(request.job, request.cluster, nullptr);
  const std::vector<PacedWalk> walks = FindPacedWalks(request.job, request.cluster, source, 4);
  REQUIRE_FALSE(walks.empty());
  CHECK(std::ranges::is_sorted(walks, {}, &PacedWalk::iteration_ns));
  const PacedWalk& best = walks.front();
  CHECK(best.sites.size() > 1);
  CHECK(best.ranks >= std::ssize(best.sites));
  CHECK(best.ranks <= request.job.model.num_hidden_layers);
  for (const std::string& site : best.sites) {
    CHECK(std::stoi(site.substr(4)) >= 6);
    CHECK(std::ranges::count(best.sites, site) == 1);
  }
}

TEST_CASE("a site whose devices are much slower than the others is left out") {
  PlanRequest request = TwoHalves();
  request.cluster.sites[8].device.peak_flops /= 100;
  request.cluster.sites[8].device.memory_bandwidth_bytes_per_s /= 100;
  const CostSource source(request.job, request.cluster, nullptr);
  for (const PacedWalk& walk : FindPacedWalks(request.job, request.cluster, source, 4)) {
    CHECK(std::ranges::find(walk.sites, "site8") == walk.sites.end());
  }
}

TEST_CASE("a fixed pipeline has its ranks, and without a site that is able there is no walk") {
  PlanRequest request = TwoHalves();
  request.job.parallelism.pipeline = 7;
  const CostSource source(request.job, request.cluster, nullptr);
  for (const PacedWalk& walk : FindPacedWalks(request.job, request.cluster, source, 4)) {
    CHECK(walk.ranks == 7);
  }
  request.job.parallelism.tensor = 64;  // more than a node has
  CHECK(FindPacedWalks(request.job, request.cluster, source, 4).empty());
}

TEST_CASE("a cluster is uniform if its sites and its links differ by names alone") {
  ClusterSpec cluster = TwoHalves().cluster;
  CHECK_FALSE(IsUniform(cluster));
  for (LinkSpec& link : cluster.links) {
    link.bandwidth_bytes_per_s = 1e9;
  }
  CHECK(IsUniform(cluster));
  ++cluster.sites[3].nodes;
  CHECK_FALSE(IsUniform(cluster));
}

}  // namespace
}  // namespace geopipe
