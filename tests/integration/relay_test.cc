// A federation whose sites really are apart: two network namespaces, with real packets that a relay delays between them
// and that are lost while it is cut. Needs root and /dev/net/tun. What it costs is measured by the bench
// relay_federation; here only what is computed counts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"
#include "tests/support/relay_federation.h"
#include "tests/support/skip.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLimitNs = 120'000 * kMs;

TEST_CASE("a federation over a real link survives a cut in mid-iteration, and its losses are those without a link") {
  if (const absl::Status sites = TunSites::Create().status(); !sites.ok()) {
    Skip("it needs network namespaces and tun devices: " + sites.ToString());
    return;
  }
  RelayFederationOptions options;
  options.link = {.latency_ns = 30 * kMs, .bandwidth_bytes_per_s = 1.25e8};
  const auto federation = RelayFederation::Start(options);
  INFO(federation.status().ToString());
  REQUIRE(federation.ok());
  const std::string job = SourcePath("deploy/examples/overlap.yaml");
  const auto run = (*federation)
                       ->Train({"-f", job, "--case", SourcePath("deploy/examples/overlap-costs.yaml"), "--pace",
                                "--iterations", "5"},
                               kLimitNs, [&](const Json& iteration) {
                                 if (iteration["iteration"] == 1) {
                                   // Iteration 2 takes at least 480 ms: some of its messages are on their way.
                                   Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 150 * kMs);
                                   (*federation)->relay().Cut(2000 * kMs);
                                 }
                               });
  INFO(run.status().ToString());
  REQUIRE(run.ok());
  CHECK(run->description["state"] == "COMPLETED");
  CHECK(run->description["plan"]["stages"].size() == 2);
  REQUIRE(run->iterations.size() == 5);
  const TunRelay& relay = (*federation)->relay();
  CHECK(relay.counters(0).dropped_cut + relay.counters(1).dropped_cut > 0);
  double longest_s = 0;
  for (const Json& iteration : run->iterations) {
    longest_s = std::max(longest_s, iteration["duration_s"].get<double>());
  }
  CHECK(longest_s > 1.5);

  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const auto alone = (*federation)
                         ->Geopipectl({"playground", "--job", job, "--sites", "1", "--iterations", "5", "--output",
                                       folder.path().string(), "-o", "json"},
                                      kLimitNs);
  INFO(alone.status().ToString());
  REQUIRE(alone.ok());
  CHECK(NumbersOf(run->iterations) == NumbersOf(Json::parse(*alone)["iterations"].get<std::vector<Json>>()));
}

}  // namespace
}  // namespace geopipe
