#include "runtime/base/network_limits.h"

#include <catch2/catch.hpp>
#include <string>

namespace geopipe {
namespace {

TEST_CASE("a range of ports") {
  const auto ports = ParsePortRange("47000-47063");
  REQUIRE(ports.ok());
  CHECK(ports->first == 47'000);
  CHECK(ports->last == 47'063);
  CHECK(ports->count() == 64);
  CHECK(ParsePortRange("")->count() == 0);
  const std::string wrong =
      GENERATE("47000", "47063-47000", "80-90", "47000-65536", "-", "a-b", "47000-", "1024-1030-1040");
  INFO(wrong);
  CHECK(ParsePortRange(wrong).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a network contains the addresses of its prefix") {
  const auto network = ParseIpv4Network("10.20.0.0/15");
  REQUIRE(network.ok());
  CHECK(network->Contains("10.20.3.4"));
  CHECK(network->Contains("10.21.255.255"));
  CHECK_FALSE(network->Contains("10.22.0.0"));
  CHECK_FALSE(network->Contains(""));
  CHECK_FALSE(network->Contains("::1"));
  CHECK(ParseIpv4Network("192.0.2.7/32")->Contains("192.0.2.7"));
  CHECK_FALSE(ParseIpv4Network("192.0.2.7/32")->Contains("192.0.2.6"));
  const std::string wrong =
      GENERATE("10.20.0.0", "10.20.0.1/16", "0.0.0.0/0", "10.20.0.0/33", "10.20/16", "fd00::/8", "/16");
  INFO(wrong);
  CHECK(ParseIpv4Network(wrong).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace geopipe
