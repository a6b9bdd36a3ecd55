#include "coordinator/cli/sites/link_output.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

v1::ListLinksResponse Links() {
  v1::ListLinksResponse response;
  v1::LinkStatus& probed = *response.add_links();
  probed.set_from_site("east");
  probed.set_to_site("west");
  probed.set_latency_ns(20'050'000);
  probed.set_bandwidth_bytes_per_s(1.24e8);
  probed.set_shaped(true);
  probed.set_source("probed");
  probed.set_declared_latency_ns(20'000'000);
  probed.set_declared_bandwidth_bytes_per_s(1.25e8);
  probed.set_age_ns(12'345'678'901);
  probed.set_measurements(2);
  v1::LinkMeasurement& measured = *probed.mutable_measured();
  measured.set_latency_ns(20'050'000);
  measured.set_latency_median_ns(20'080'000);
  measured.set_latency_spread_ns(30'000);
  measured.set_latency_samples(16);
  measured.set_bandwidth_bytes_per_s(1.24e8);
  measured.set_bandwidth_spread_bytes_per_s(2.5e5);
  measured.set_bandwidth_samples(3);
  v1::LinkStatus& declared = *response.add_links();
  declared.set_from_site("west");
  declared.set_to_site("east");
  declared.set_latency_ns(20'000'000);
  declared.set_bandwidth_bytes_per_s(1.25e8);
  declared.set_source("declared");
  declared.set_declared_latency_ns(20'000'000);
  declared.set_declared_bandwidth_bytes_per_s(1.25e8);
  declared.set_trouble("west/0: no device");
  return response;
}

TEST_CASE("links are a table of what counts, how sure it is and what was declared") {
  CHECK(LinkTableOf(Links(), false).Render() ==
        "FROM  TO    LATENCY        ±  BANDWIDTH          ±  SOURCE         AGE            DECLARED\n"
        "east  west  20.1 ms  30.0 µs   992 Mbps  2.00 Mbps  probed    12 s ago  20.0 ms, 1.00 Gbps\n"
        "west  east  20.0 ms        -  1.00 Gbps          -  declared         -  20.0 ms, 1.00 Gbps\n");
  const std::string wide = LinkTableOf(Links(), true).Render();
  CHECK(wide.find("west/0: no device") != std::string::npos);
  CHECK(wide.find("MEDIAN LATENCY") != std::string::npos);
}

TEST_CASE("the network inside a site that was not measured has no figures") {
  v1::ListLinksResponse response;
  v1::LinkStatus& inside = *response.add_links();
  inside.set_from_site("east");
  inside.set_to_site("east");
  inside.set_source("unknown");
  CHECK(LinkTableOf(response, false).Render() ==
        "FROM  TO    LATENCY  ±  BANDWIDTH  ±  SOURCE   AGE  DECLARED\n"
        "east  east        -  -          -  -  unknown    -         -\n");
  const Json json = LinksToJson(response);
  CHECK(json[0]["latency_s"].is_null());
  CHECK(json[0]["bandwidth_Bps"].is_null());
  CHECK(json[0]["declared"].is_null());
}

TEST_CASE("links as JSON hold the same in base units") {
  const Json json = LinksToJson(Links());
  REQUIRE(json.size() == 2);
  CHECK(json[0]["latency_s"] == 0.02005);
  CHECK(json[0]["declared"]["latency_s"] == 0.02);
  CHECK(json[0]["measured"]["latency_spread_s"] == 30e-6);
  CHECK(json[0]["measured"]["round_trips"] == 16);
  CHECK(json[0]["measured"]["bandwidth_Bps"] == 1.24e8);
  CHECK(json[0]["trouble"].is_null());
  CHECK(json[1]["source"] == "declared");
  CHECK(json[1]["measured"].is_null());
  CHECK(json[1]["trouble"] == "west/0: no device");
}

}  // namespace
}  // namespace geopipe
