// Plans for the federation as it is: as a topology file, from the coordinator itself.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

// A coordinator and an agent at each of three sites, north with the figures of its device, all joined by links that are
// probed once.
class ThreeSites : public CaseFolder {
 public:
  ThreeSites()
      : coordinator_(Path("coordinator"), {"--config", Write("coordinator.yaml", "probe_interval: 1h\n")}),
        north_("geopipe-agent", Agent("north", {"east", "west"})),
        east_("geopipe-agent", Agent("east", {"north"})),
        west_("geopipe-agent", Agent("west", {"north"})) {
    WaitUntil(coordinator_.command(), [&] {
      const Json links = Json::parse(Ask({"get", "links", "-o", "json"}).out);
      return links.size() == 4 &&
             std::ranges::all_of(links, [](const Json& link) { return link["source"] == "probed"; });
    });
  }

  CommandResult Ask(std::vector<std::string> args) const { return coordinator_.Ask(std::move(args)); }
  std::string Job() const { return Job("[north, east, west]", "[north, east]"); }
  std::string Job(const std::string& from, const std::string& to) const { return ChangedJob(folder(), from, to); }

 private:
  std::vector<std::string> Agent(const std::string& site, const std::vector<std::string>& others) const {
    std::string config = "links:\n";
    for (const std::string& other : others) {
      config += fmt::format("  - {{to: {}, latency: 5ms, bandwidth: 200Mbps, shape: true}}\n", other);
    }
    std::vector<std::string> args = AgentArgs(coordinator_.endpoint(), site, Path(site));
    args.insert(args.end(), {"--config", Write(site + ".yaml", config), "--set", "devices.count=2"});
    if (site != "west") {
      args.insert(args.end(), {"--set", "devices.peak_flops=1e12", "--set", "devices.memory_bandwidth=20GB/s"});
    }
    return args;
  }

  RunningCoordinator coordinator_;
  Command north_;
  Command east_;
  Command west_;
};

// Returns the plan without what differs from one moment to another.
Json PlanIn(const CommandResult& result) {
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  Json plan = Json::parse(result.out);
  plan["search"].erase("wall_s");
  return plan;
}

TEST_CASE("the federation is written as a topology file, and plan makes the same of it and of the sites themselves") {
  const ThreeSites sites;
  const std::string job = sites.Job();

  // West says nothing of its device.
  CheckEnded(sites.Ask({"plan", "-f", job, "--from-sites"}), 2,
             "error: site west: its agents do not say the peak_flops of their devices",
             {"get sites -o topology", "--profile"});
  CommandResult written = sites.Ask({"get", "sites", "-o", "topology"});
  REQUIRE(written.exit_status.success());
  for (const std::string text :
       {"# The federation of the coordinator at 127.0.0.1:", "  - name: west\n",
        "      # peak_flops: 989e12   not known; needed where there is no --profile\n", "  # probed ",
        "  - between: [east, north]\n", "  # - {between: [east, west], latency: 20ms, bandwidth: 10Gbps}   not known\n",
        "      peak_flops: 1000000000000\n"}) {
    INFO(written.out);
    INFO(text);
    CHECK(written.out.find(text) != std::string::npos);
  }
  CHECK(RunCommand("geopipectl", {"plan", "-f", job, "--topology", sites.Write("t.yaml", written.out)})
            .err.find("peak_flops is not given, and no profile says") != std::string::npos);

  REQUIRE(sites.Ask({"drain", "site", "west"}).exit_status.success());
  const CommandResult from_sites = sites.Ask({"plan", "-f", job, "--from-sites", "-o", "json"});
  CHECK(from_sites.err.find("note: planned without west/") == 0);
  CHECK(from_sites.err.find(" (its site is drained)\n") != std::string::npos);
  const Json plan = PlanIn(from_sites);
  CHECK(plan["plan"]["stages"].size() >= 2);
  CHECK(plan["figures"]["links"][0]["bandwidth_Bps"].get<double>() == Approx(25e6).epsilon(0.2));  // as probed
  written = sites.Ask({"get", "sites", "-o", "topology"});
  CHECK(written.out.find("# Left out: west/") != std::string::npos);
  CHECK(written.out.find("name: west") == std::string::npos);
  CHECK(PlanIn(RunCommand("geopipectl", {"plan", "-f", job, "--topology", sites.Write("t.yaml", written.out), "-o",
                                         "json"})) == plan);
  // Sweeps and questions are of the same cluster.
  const Json what_if =
      Json::parse(sites.Ask({"plan", "-f", job, "--from-sites", "--what-if", "bandwidth=400Gbps", "-o", "json"}).out);
  CHECK(what_if["now"]["plan"] == plan["plan"]);
  CHECK(what_if["then"]["figures"]["links"][0]["bandwidth_Bps"] == 50e9);

  CHECK(sites.Ask({"get", "sites", "north", "-o", "topology"}).out.find("east") == std::string::npos);
  CheckEnded(sites.Ask({"get", "sites", "mars", "-o", "topology"}), 1, "error: there are no sites of 'mars'", {});
  CheckEnded(sites.Ask({"get", "jobs", "-o", "topology"}), 2, "error: -o topology writes sites", {"get sites"});
  CheckEnded(sites.Ask({"plan", "-f", job, "--from-sites", "--topology", "t.yaml"}), 2,
             "error: --topology and --from-sites", {});
  CheckEnded(sites.Ask({"plan", "-f", job, "--topology", "t.yaml"}), 2, "error: --server and --timeout are about", {});
  CheckEnded(sites.Ask({"plan", "-f", sites.Job("[north, east, west]", "[north, mars]"), "--from-sites"}), 2,
             "note: ", {"spec.placement.sites: names \"mars\""});
}

TEST_CASE("without a coordinator there are no sites to plan from") {
  CheckEnded(RunCommand("geopipectl", {"plan", "-f", SourcePath("tests/golden/jobs/mini.yaml"), "--from-sites",
                                       "--server", "127.0.0.1:1"}),
             4, "error: no answer from a coordinator at 127.0.0.1:1", {});
}

}  // namespace
}  // namespace geopipe
