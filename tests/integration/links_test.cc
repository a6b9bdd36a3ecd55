// Agents of two sites with a shaped link between them, and no job: the link is probed by itself, and `get links` shows
// the truth.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/clock.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// What the program wrote to its ready-fd, which is its standard output here.
std::string ReadyLine(Command& command) {
  const int64_t deadline_ns = Clock::Real().NowNs() + 30 * kSecond;
  std::string line;
  while (line.find('\n') == std::string::npos) {
    INFO(command.err());
    REQUIRE_FALSE(command.process().Wait(20'000'000).has_value());
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
    line = command.out();
  }
  return line.substr(0, line.find('\n'));
}

Command StartAgent(const TempFolder& folder, const std::string& site, const std::string& other,
                   const std::string& coordinator) {
  const std::string config = (folder.path() / (site + ".yaml")).string();
  REQUIRE(WriteFileAtomically(config,
                              fmt::format("site: {0}\ncoordinator: {2}\nstate_dir: {3}/{0}\ndie_with_parent: true\n"
                                          "devices: {{count: 1, kind: cpu, memory: 1GiB}}\n"
                                          "links:\n  - {{to: {1}, latency: 20ms, bandwidth: 100Mbps, shape: true}}\n",
                                          site, other, coordinator, folder.path().string()))
              .ok());
  return Command("geopipe-agent", {"--config", config, "--ready-fd", "1"});
}

TEST_CASE("links of idle sites are probed, and get links shows both directions within the bars") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  Command coordinator("geopipe-coordinator", {"--state-dir", (folder.path() / "coordinator").string(), "--listen",
                                              "127.0.0.1:0", "--ready-fd", "1", "--die-with-parent"});
  const std::string endpoint = ReadyLine(coordinator);
  Command east = StartAgent(folder, "east", "west", endpoint);
  Command west = StartAgent(folder, "west", "east", endpoint);
  ReadyLine(east);
  ReadyLine(west);

  const int64_t deadline_ns = Clock::Real().NowNs() + 60 * kSecond;
  Json links;
  bool probed = false;
  while (!probed) {
    const CommandResult result = RunCommand("geopipectl", {"get", "links", "--server", endpoint, "-o", "json"});
    INFO(result.err);
    REQUIRE(result.exit_status.success());
    links = Json::parse(result.out);
    REQUIRE(links.size() == 2);
    probed = links[0]["source"] == "probed" && links[1]["source"] == "probed";
    INFO(links.dump(2));
    INFO(coordinator.err());
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
  }
  for (const Json& link : links) {
    INFO(link.dump(2));
    CHECK(link["latency_s"].get<double>() == Approx(0.02).epsilon(0.05));
    CHECK(link["bandwidth_Bps"].get<double>() == Approx(12.5e6).epsilon(0.10));
    CHECK(link["declared"]["bandwidth_Bps"] == 12.5e6);
    CHECK(link["measured"]["round_trips"].get<int>() >= 7);
  }
  const CommandResult table = RunCommand("geopipectl", {"get", "links", "--server", endpoint});
  CHECK(table.out.find("probed") != std::string::npos);
  CHECK(table.out.find("20.0 ms, 100 Mbps") != std::string::npos);
}

}  // namespace
}  // namespace geopipe
