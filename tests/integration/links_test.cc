// Agents of two sites with a shaped link between them, or of two nodes of a site, and no job: the link is probed by
// itself, and `get links` and `get sites` show the truth.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "tests/integration/processes.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"
#include "tests/support/listening_ports.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// Returns the line that the program wrote to its ready-fd, which is its standard output here.
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
                   const std::string& coordinator, const std::string& ucx = "{tls: tcp}") {
  const std::string config = (folder.path() / (site + ".yaml")).string();
  REQUIRE(WriteFileAtomically(config,
                              fmt::format("site: {0}\ncoordinator: {2}\nstate_dir: {3}/{0}\ndie_with_parent: true\n"
                                          "devices: {{count: 1, kind: cpu, memory: 1GiB}}\nucx: {4}\n"
                                          "links:\n  - {{to: {1}, latency: 20ms, bandwidth: 100Mbps, shape: true}}\n",
                                          site, other, coordinator, folder.path().string(), ucx))
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

Json SitesOf(const std::string& endpoint) {
  const CommandResult result = RunCommand("geopipectl", {"get", "sites", "--server", endpoint, "-o", "json"});
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  return Json::parse(result.out);
}

TEST_CASE("the network between two nodes of a site is probed when none declares it, and get sites shows it") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  Command coordinator("geopipe-coordinator", {"--state-dir", (folder.path() / "coordinator").string(), "--listen",
                                              "127.0.0.1:0", "--ready-fd", "1", "--die-with-parent"});
  const std::string endpoint = ReadyLine(coordinator);
  const auto start = [&](const std::string& node) {
    const std::string config = (folder.path() / (node + ".yaml")).string();
    REQUIRE(WriteFileAtomically(config,
                                fmt::format("site: east\nnode: {0}\ncoordinator: {1}\nstate_dir: {2}/{0}\n"
                                            "die_with_parent: true\ndevices: {{count: 1, kind: cpu, memory: 1GiB}}\n",
                                            node, endpoint, folder.path().string()))
                .ok());
    return Command("geopipe-agent", {"--config", config, "--ready-fd", "1"});
  };
  Command first = start("a");
  ReadyLine(first);
  CHECK(SitesOf(endpoint).at(0)["network"].is_null());
  Command second = start("b");
  ReadyLine(second);

  const int64_t deadline_ns = Clock::Real().NowNs() + 60 * kSecond;
  Json sites = SitesOf(endpoint);
  while (sites.size() < 2 || sites[0]["network"].is_null()) {
    INFO(coordinator.err());
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
    sites = SitesOf(endpoint);
  }
  const Json network = sites[0]["network"];
  INFO(network.dump(2));
  CHECK(network["source"] == "measured");
  CHECK(network["per"] == "node");
  CHECK(network["bandwidth_Bps"].get<double>() > 1e7);  // over loopback, on whatever else this machine does
  CHECK(network["latency_s"].get<double>() < 0.01);
  CHECK(network["age_s"].get<double>() < 60);
  const CommandResult links = RunCommand("geopipectl", {"get", "links", "--server", endpoint, "-o", "json"});
  const Json inside = Json::parse(links.out);
  REQUIRE(inside.size() == 1);
  CHECK(inside[0]["from"] == "east");
  CHECK(inside[0]["to"] == "east");
  CHECK(inside[0]["declared"].is_null());
  CHECK(inside[0]["bandwidth_Bps"] == network["bandwidth_Bps"]);
}

// Sends the magic number of UCX's TCP connections and an overlong message length to the port on loopback. False: its
// listener has ended in between.
bool SendMalformed(uint16_t port) {
  constexpr std::array<unsigned char, 13> kBytes = {0x78, 0x56, 0x34, 0x12, 0xbe, 0xba, 0xfe,
                                                    0xca, 0x01, 0xff, 0xff, 0xff, 0x7f};
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
         send(fd.get(), kBytes.data(), kBytes.size(), MSG_NOSIGNAL) == std::ssize(kBytes);
}

// The processes in which the agent runs probes.
std::vector<ProcessInfo> Probes(Command& agent) {
  std::vector<ProcessInfo> probes;
  for (const ProcessInfo& process : Descendants(agent.process().pid())) {
    if (process.Runs("geopipe-worker")) {
      probes.push_back(process);
    }
  }
  return probes;
}

TEST_CASE("13 malformed bytes to every port of an agent end a probe at most, and ports keep to their range") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  Command coordinator("geopipe-coordinator", {"--state-dir", (folder.path() / "coordinator").string(), "--listen",
                                              "127.0.0.1:0", "--ready-fd", "1", "--die-with-parent"});
  const std::string endpoint = ReadyLine(coordinator);
  Command east = StartAgent(folder, "east", "west", endpoint, "{tls: tcp, ports: 47410-47429}");
  ReadyLine(east);
  CHECK(ListeningPorts(east.process().pid()).empty());  // it talks to its workers over a Unix socket
  Command west = StartAgent(folder, "west", "east", endpoint, "{tls: tcp, ports: 47410-47429}");
  ReadyLine(west);

  const int64_t deadline_ns = Clock::Real().NowNs() + 60 * kSecond;
  std::set<int64_t> ended;  // probes that the bytes have ended, by pid
  while (ended.size() < 2) {
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
    for (Command* agent : {&east, &west}) {
      for (const ProcessInfo& probe : Probes(*agent)) {
        int64_t reached = 0;
        for (const uint16_t port : ListeningPorts(probe.pid)) {
          CHECK(port >= 47'410);
          CHECK(port <= 47'429);
          reached += SendMalformed(port) ? 1 : 0;
        }
        if (reached == 2) {  // both the listener and the port for data: the latter is the one that dies of it
          ended.insert(probe.pid);
        }
      }
    }
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 5 * kMs);
  }
  // The agents live, and a later probe measures the link.
  while (RunCommand("geopipectl", {"get", "links", "--server", endpoint}).out.find("probed") == std::string::npos) {
    REQUIRE(Clock::Real().NowNs() < deadline_ns);
  }
  CHECK_FALSE(east.process().Wait(0).has_value());
  CHECK_FALSE(west.process().Wait(0).has_value());
}

}  // namespace
}  // namespace geopipe
