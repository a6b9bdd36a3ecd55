#include "coordinator/cli/sites/site_output.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

v1::NodeStatus& AddNode(v1::SiteStatus& site, const std::string& name) {
  v1::NodeStatus& node = *site.add_nodes();
  node.mutable_spec()->set_site(site.name());
  node.mutable_spec()->set_node(name);
  node.mutable_spec()->set_devices(8);
  node.mutable_spec()->mutable_device()->set_kind("cpu");
  node.mutable_spec()->mutable_device()->set_memory_bytes(int64_t{1} << 30);
  node.set_connected(true);
  node.set_version("1.2.3");
  node.set_last_heartbeat_age_ns(500'000'000);
  v1::RefusedBackend& refused = *node.mutable_spec()->add_refused_backends();
  refused.set_backend(v1::BACKEND_KIND_CUDA);
  refused.set_reason("no library");
  return node;
}

v1::ListSitesResponse Sites() {
  v1::ListSitesResponse response;
  v1::SiteStatus& declared = *response.add_sites();
  declared.set_name("east");
  v1::NetworkSpec& network = *AddNode(declared, "a").mutable_spec()->mutable_network();
  network.set_bandwidth_bytes_per_s(5e10);
  network.set_latency_ns(5000);
  network.set_per(v1::NETWORK_SHARE_DEVICE);
  v1::SiteStatus& measured = *response.add_sites();
  measured.set_name("north");
  AddNode(measured, "a");
  AddNode(measured, "b").set_workers_summary("8 running: tiny");
  v1::SiteStatus& alone = *response.add_sites();
  alone.set_name("west");
  alone.set_drained(true);
  AddNode(alone, "a").set_connected(false);
  return response;
}

v1::ListLinksResponse NorthLinks() {
  v1::ListLinksResponse response;
  for (const auto& [to, bytes_per_s] : {std::pair("west", 1.25e8), std::pair("north", 2.5e9)}) {
    v1::LinkStatus& link = *response.add_links();
    link.set_from_site("north");
    link.set_to_site(to);
    link.set_latency_ns(12'000);
    link.set_bandwidth_bytes_per_s(bytes_per_s);
    link.set_source("probed");
    link.set_age_ns(12'300'000'000);
    link.mutable_measured()->set_bandwidth_bytes_per_s(bytes_per_s);
  }
  return response;
}

TEST_CASE("sites are a table of nodes, with the network that is declared or was measured between them") {
  CHECK(SiteTableOf(Sites(), NorthLinks(), false).Render() ==
        "SITE   NODE  STATE          DEVICES  KIND    MEMORY                                         NETWORK          "
        "WORKERS\n"
        "east   a     connected            8  cpu   1.00 GiB          400 Gbps, 5.00 µs per device, declared           "
        "     -\n"
        "north  a     connected            8  cpu   1.00 GiB  20.0 Gbps, 12.0 µs per node, measured 12 s ago           "
        "     -\n"
        "north  b     connected            8  cpu   1.00 GiB  20.0 Gbps, 12.0 µs per node, measured 12 s ago  8 "
        "running: tiny\n"
        "west   a     lost, drained        8  cpu   1.00 GiB                                               -           "
        "     -\n");
  const std::string wide = SiteTableOf(Sites(), NorthLinks(), true).Render();
  CHECK(wide.find("HEARTBEAT") != std::string::npos);
  CHECK(wide.find("1.2.3") != std::string::npos);
}

TEST_CASE("a network that is not measured yet is not shown") {
  v1::ListLinksResponse links = NorthLinks();
  links.mutable_links(1)->clear_measured();
  CHECK(SitesToJson(Sites(), links)[1]["network"].is_null());
}

TEST_CASE("sites as JSON hold the same in base units") {
  const Json json = SitesToJson(Sites(), NorthLinks());
  REQUIRE(json.size() == 4);
  CHECK(json[0]["network"] == Json({{"bandwidth_Bps", 5e10},
                                    {"latency_s", 5e-6},
                                    {"per", "device"},
                                    {"source", "declared"},
                                    {"age_s", nullptr}}));
  CHECK(
      json[1]["network"] ==
      Json({{"bandwidth_Bps", 2.5e9}, {"latency_s", 12e-6}, {"per", "node"}, {"source", "measured"}, {"age_s", 12.3}}));
  CHECK(json[2]["network"] == json[1]["network"]);
  CHECK(json[3]["network"].is_null());
  CHECK(json[2]["workers"] == "8 running: tiny");
  CHECK(json[2]["refused_backends"] == Json({{"cuda", "no library"}}));
  CHECK(json[3]["drained"] == true);
}

}  // namespace
}  // namespace geopipe
