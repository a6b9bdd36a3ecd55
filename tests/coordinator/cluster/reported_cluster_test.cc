// The cluster that the coordinator tells of, for plans made beside it, is the one that it plans with itself.
#include "coordinator/cluster/reported_cluster.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

absl::StatusOr<ReportedCluster> Reported(Federation& f) {
  f.Step(ListSites{f.next_call++});
  const auto sites = std::get<v1::ListSitesResponse>(*f.Last<ReplyToCall>().at(0).reply);
  f.Step(ListLinks{f.next_call++});
  const auto links = std::get<v1::ListLinksResponse>(*f.Last<ReplyToCall>().at(0).reply);
  return ClusterAsReported(sites, links);
}

// Returns the cluster with which the coordinator asks its planner.
ClusterSpec Planned(Federation& f) {
  f.Step(ApplyJob{f.next_call++, f.job, f.run});
  f.HelloAll();
  f.ProfileAll();
  REQUIRE(f.planning.size() == 1);
  return f.planning[0].input.cluster;
}

TEST_CASE("the cluster as it is reported is the one that the coordinator plans with: links as declared or measured") {
  for (const int probed : {0, 1, 2, 3}) {
    INFO(probed);
    Federation f(probed == 0 ? Federation::DefaultOptions() : Federation::ProbingOptions());
    f.sites = {"east", "north", "west"};
    f.job = Federation::TinyJob(f.sites);
    for (const std::string& site : f.sites) {
      f.Register(site);
    }
    for (int i = 0; i < probed; ++i) {
      f.OpenProbe();
      f.MeasureProbe((21 + i) * kMs, 1.2e8 - i, 1.1e8 + i);
    }
    f.RunFor(5 * kSecond);
    const absl::StatusOr<ReportedCluster> reported = Reported(f);
    INFO(reported.status().ToString());
    REQUIRE(reported.ok());
    CHECK(reported->left_out.empty());
    REQUIRE(reported->links.size() == 3);
    int measured = 0;
    for (const auto& [pair, source] : reported->links) {
      measured += source.source == "probed" ? 1 : 0;
    }
    CHECK(measured == probed);
    f.RunFor(20 * kSecond);  // a job waits no longer for probes
    for (int i = 0; i < 100 && f.probe.has_value(); ++i) {
      f.FailProbe();
    }
    CHECK(reported->cluster == Planned(f));
  }
}

TEST_CASE("nodes of a site have the network between them that was measured, or that they declare") {
  for (const bool declared : {false, true}) {
    INFO(declared);
    Federation f(Federation::ProbingOptions());
    f.sites = {"east", "east/n1"};
    f.job = Federation::TinyJob({"east"});
    if (declared) {
      f.network.emplace().set_bandwidth_bytes_per_s(1e9);
      f.network->set_per(v1::NETWORK_SHARE_DEVICE);
    }
    for (const std::string& node : f.sites) {
      f.Register(node);
    }
    if (!declared) {
      f.OpenProbe();
      f.MeasureProbe(9000, 3e9, 2e9);
    }
    const absl::StatusOr<ReportedCluster> reported = Reported(f);
    INFO(reported.status().ToString());
    REQUIRE(reported.ok());
    REQUIRE(reported->cluster.sites.size() == 1);
    CHECK(reported->cluster.sites[0].nodes == 2);
    CHECK(reported->cluster.sites[0].network.bandwidth_bytes_per_s == (declared ? 1e9 : 2e9));
    CHECK(reported->links.contains(InsideOf("east")) == !declared);
    CHECK(reported->cluster == Planned(f));
  }
}

TEST_CASE("nodes with other numbers of devices are groups, as the coordinator names them") {
  Federation f;
  f.sites = {"east", "east/n1"};
  f.Register("east");
  f.Register("east/n1", 1, {}, 4);
  const absl::StatusOr<ReportedCluster> reported = Reported(f);
  REQUIRE(reported.ok());
  REQUIRE(reported->cluster.sites.size() == 2);
  CHECK(reported->cluster.sites[0].name == "east/cpu");
  CHECK(reported->cluster.sites[1].name == "east/cpu-2");
  CHECK(reported->cluster.sites[1].devices_per_node == 4);
  REQUIRE(reported->cluster.links.size() == 1);
  CHECK(reported->cluster.links[0].inside());
}

TEST_CASE("nodes that are lost and sites that are drained are left out, and said") {
  Federation f;
  for (const std::string& site : f.sites) {
    f.Register(site);
  }
  f.Close(f.sessions["west"]);
  f.Step(DrainSite{f.next_call++, "north"});
  absl::StatusOr<ReportedCluster> reported = Reported(f);
  REQUIRE(reported.ok());
  CHECK(reported->cluster.SiteNames() == std::vector<std::string>{"east"});
  CHECK(reported->cluster.links.empty());
  CHECK(LeftOutText(reported->left_out) == "north/n0 (its site is drained) and west/n0 (lost)");
  f.Step(DrainSite{f.next_call++, "east"});
  reported = Reported(f);
  CHECK(absl::IsFailedPrecondition(reported.status()));
  CHECK(
      reported.status().message() ==
      "no node is in use: east/n0, north/n0 (its site is drained) and west/n0 (lost); start their agents, or uncordon "
      "their sites");
  Federation none;
  CHECK(Reported(none).status().message() == "no agent has registered with the coordinator; start one on each node");
}

}  // namespace
}  // namespace geopipe
