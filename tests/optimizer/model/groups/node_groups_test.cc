#include "optimizer/model/groups/node_groups.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

// "a" has nodes of two kinds, "b" of one.
ClusterSpec WithGroups() {
  const NetworkSpec network{.bandwidth_bytes_per_s = 5e10, .latency_ns = 5'000};
  DeviceSpec device{.memory_bytes = 1 << 30, .peak_flops = 2e12};
  ClusterSpec cluster;
  cluster.sites.push_back({.name = "a/fast", .devices_per_node = 2, .device = device, .network = network});
  device.peak_flops = 1e12;
  cluster.sites.push_back({.name = "a/slow", .devices_per_node = 2, .device = device, .network = network});
  cluster.sites.push_back({.name = "b", .nodes = 2, .devices_per_node = 4, .device = device});
  cluster.links = LinksOfGroups(cluster.sites, {{"a", "b", 5'000'000, 1e9}});
  return cluster;
}

TEST_CASE("groups of a site are joined by its network, and to other sites by the links of their site") {
  const ClusterSpec cluster = WithGroups();
  CHECK(ValidateCluster(cluster).ok());
  CHECK(cluster.links == std::vector<LinkSpec>{{"a/fast", "a/slow", 5'000, 5e10},
                                               {"a/fast", "b", 5'000'000, 1e9},
                                               {"a/slow", "b", 5'000'000, 1e9}});
  CHECK(cluster.links[0].inside());
  CHECK_FALSE(cluster.links[1].inside());
  CHECK(SiteOfGroup("a/fast") == "a");
  CHECK(SiteOfGroup("b") == "b");
  CHECK(cluster.SiteNames() == std::vector<std::string>{"a", "b"});
  CHECK(cluster.GroupsOf("a") == std::vector{&cluster.sites[0], &cluster.sites[1]});
  CHECK(cluster.GroupsOf("a/slow") == std::vector{&cluster.sites[1]});
  CHECK(cluster.GroupsOf("c").empty());
  CHECK(cluster.FindLink("b", "a") == &cluster.links[1]);
  CHECK(cluster.FindLink("a/slow", "a/fast") == &cluster.links[0]);
}

TEST_CASE("a network that is not given joins groups for nothing") {
  ClusterSpec cluster = WithGroups();
  cluster.sites[0].network = cluster.sites[1].network = {};
  cluster.links = LinksOfGroups(cluster.sites, {{"a", "b", 5'000'000, 1e9}});
  CHECK(cluster.links[0] == LinkSpec{"a/fast", "a/slow", 0, 0});
  CHECK(ValidateCluster(cluster).ok());
}

TEST_CASE("sites are alike when all but their names is") {
  ClusterSpec cluster = WithGroups();
  CHECK_FALSE(AreAlike(cluster, "a", "b"));
  cluster.sites[2] = cluster.sites[0];
  cluster.sites[2].name = "b/x";
  CHECK_FALSE(AreAlike(cluster, "a", "b"));
  cluster.sites.push_back(cluster.sites[1]);
  cluster.sites[3].name = "b/y";
  CHECK(AreAlike(cluster, "a", "b"));
  cluster.sites[3].nodes = 7;
  CHECK_FALSE(AreAlike(cluster, "a", "b"));
}

TEST_CASE("a site is listed whole or by its groups, which share a network") {
  ClusterSpec cluster = WithGroups();
  cluster.sites[1].network.latency_ns = 6'000;
  CHECK(std::string(ValidateCluster(cluster).message()) ==
        "groups \"a/fast\" and \"a/slow\" have different networks; the groups of a site share one");
  cluster = WithGroups();
  cluster.sites[1].name = "a";
  CHECK(std::string(ValidateCluster(cluster).message()) == "site \"a\" is listed twice; give each site once");
  cluster.sites[1].name = "a/";
  CHECK(ValidateCluster(cluster).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a group is called by its kind, and a number where that is taken") {
  CHECK(GroupName("h100", {}) == "h100");
  CHECK(GroupName("h100", {"a", "h100"}) == "h100-2");
  CHECK(GroupName("h100", {"h100", "h100-2"}) == "h100-3");
  CHECK(GroupName("no name", {}) == "group");
}

TEST_CASE("groups of a site stand together or do not") {
  CHECK(GroupsStandTogether({}));
  CHECK(GroupsStandTogether({"a/x", "a/y", "b", "c/x", "c/z"}));
  CHECK_FALSE(GroupsStandTogether({"a/x", "b", "a/y"}));
  CHECK_FALSE(GroupsStandTogether({"a/x", "a/y", "b", "c", "a/z"}));
}

}  // namespace
}  // namespace geopipe
