#include "optimizer/model/cluster.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <string>

namespace geopipe {
namespace {

ClusterSpec TwoSites() {
  ClusterSpec cluster;
  const DeviceSpec device{.memory_bytes = 1 << 30, .peak_flops = 1e12, .memory_bandwidth_bytes_per_s = 1e11};
  cluster.sites = {{"a", 1, 2, device}, {"b", 2, 4, device}};
  cluster.links = {{"a", "b", 5'000'000, 1e9}};
  return cluster;
}

TEST_CASE("sites by name, links by either order of names") {
  const ClusterSpec cluster = TwoSites();
  CHECK(cluster.FindSite("b") == &cluster.sites[1]);
  CHECK(cluster.FindSite("c") == nullptr);
  CHECK(cluster.FindLink("a", "b") == &cluster.links[0]);
  CHECK(cluster.FindLink("b", "a") == &cluster.links[0]);
  CHECK(cluster.FindLink("a", "a") == nullptr);
  CHECK(ValidateCluster(cluster).ok());
}

TEST_CASE("a cluster that contradicts itself is refused by name and rule") {
  struct Case {
    std::function<void(ClusterSpec&)> change;
    std::string_view message;
  };
  const Case cases[] = {
      {[](ClusterSpec& c) { c.sites.clear(); }, "the cluster has no sites; list at least one"},
      {[](ClusterSpec& c) { c.sites[0].name = "a b"; },
       "name is \"a b\"; it must be 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or a digit"},
      {[](ClusterSpec& c) { c.sites[1].name = c.sites[0].name; }, "site \"a\" is listed twice; give each site once"},
      {[](ClusterSpec& c) { c.sites[0].nodes = 0; }, "site \"a\": nodes is 0; it must be from 1 to 1048576"},
      {[](ClusterSpec& c) { c.sites[0].devices_per_node = -1; },
       "site \"a\": devices_per_node is -1; it must be from 1 to 1024"},
      {[](ClusterSpec& c) { c.sites[0].device.memory_bytes = 0; },
       "site \"a\": device.memory is 0 bytes; it must be positive"},
      {[](ClusterSpec& c) { c.sites[0].device.peak_flops = std::numeric_limits<double>::quiet_NaN(); },
       "site \"a\": device.peak_flops is nan; it must be finite and not negative"},
      {[](ClusterSpec& c) { c.sites[0].device.efficiency = 1.5; },
       "site \"a\": device.efficiency is 1.5; it must be above 0 and at most 1"},
      {[](ClusterSpec& c) { c.sites[0].device.attention_efficiency = 0; },
       "site \"a\": device.attention_efficiency is 0; it must be above 0 and at most 1"},
      {[](ClusterSpec& c) { c.links[0].site_b = "nowhere"; },
       "link between \"a\" and \"nowhere\": there is no site \"nowhere\""},
      {[](ClusterSpec& c) { c.links[0].site_b = c.links[0].site_a; },
       "link between \"a\" and \"a\": a link joins two different sites"},
      {[](ClusterSpec& c) { c.links[0].latency_ns = -1; },
       "link between \"a\" and \"b\": latency is -1ns; it must be from 0 to 1min"},
      {[](ClusterSpec& c) { c.links[0].bandwidth_bytes_per_s = 0; },
       "link between \"a\" and \"b\": bandwidth is 0bps; it must be finite and at least 8bps"},
      {[](ClusterSpec& c) {
         c.links.push_back({"b", "a", 1, 1e9});
       },
       "the link between \"b\" and \"a\" is listed twice; a link serves both directions"},
  };
  for (const Case& c : cases) {
    ClusterSpec cluster = TwoSites();
    c.change(cluster);
    const absl::Status status = ValidateCluster(cluster);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()) == std::string(c.message));
  }
}

}  // namespace
}  // namespace geopipe
