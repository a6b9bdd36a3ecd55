// Runs that cannot go on: too little memory, numbers that are NaN or infinite. The job is FAILED at once, in one
// sentence that says where.
#include <catch2/catch.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/integration/processes.h"

namespace geopipe {
namespace {

void CheckMatches(const CommandResult& result, const std::string& pattern) {
  INFO(result.out);
  INFO(result.err);
  INFO(pattern);
  CHECK(result.exit_status.exit_code == 1);
  CHECK(std::regex_search(result.err, std::regex(pattern)));
}

const std::string kDoNotFit =
    " [0-9]+ bytes for (weights|gradients|optimizer|activations|workspace|transport|recovery) do not fit into the "
    "device's "
    "memory of [0-9]+ bytes, of which [0-9]+ are in use \\(weights [0-9]+, gradients [0-9]+, optimizer [0-9]+, "
    "activations [0-9]+, workspace [0-9]+, transport [0-9]+, recovery 0\\); give the device more memory";

TEST_CASE("memory: measuring that does not fit fails the job with worker, category, size and limit") {
  const TempFolder folder = TestFolder();
  const std::string topology = (folder.path() / "topology.yaml").string();
  REQUIRE(WriteFileAtomically(topology,
                              "sites:\n  - {name: north, nodes: 1, devices_per_node: 1, device: {memory: 100KiB}}\n")
              .ok());
  const std::string job = ChangedJob(folder, "[north, east, west]", "[north]");
  const CommandResult result = RunCommand(
      "geopipectl", {"playground", "--job", job, "--topology", topology, "--output", folder.path().string()});
  CheckMatches(result, "^error: job mini FAILED: worker north/0/0 \\(site north\\) failed:" + kDoNotFit);
  CHECK(result.err.find("memory of 102400 bytes") != std::string::npos);
}

TEST_CASE("memory: an iteration that does not fit fails the job with iteration, stage, worker, category and sizes") {
  const TempFolder folder = TestFolder();
  const std::string costs = (folder.path() / "case.yaml").string();
  REQUIRE(WriteFileAtomically(costs, "devices: 1\nmicro_batches: 8\nforward_s: 0.001\nbackward_s: 0.002\n").ok());
  const std::string job = ChangedJob(folder, "[north, east, west]", "[north]");
  RunningCoordinator coordinator((folder.path() / "coordinator").string());
  // Weights, gradients and optimizer states fit; explicit costs say nothing of memory, so the planner does not object.
  Command agent("geopipe-agent",
                AgentArgs(coordinator.endpoint(), "north", (folder.path() / "agent").string(), "1400KiB"));
  WaitForWords(agent, "registered with the coordinator");
  const CommandResult applied = coordinator.Ask({"apply", "-f", job, "--case", costs, "--pace"});
  INFO(applied.err);
  REQUIRE(applied.exit_status.success());
  const CommandResult watched = coordinator.Ask({"watch", "mini"});
  CheckMatches(watched,
               "^error: job mini FAILED: worker north/north-0/0 \\(site north\\) failed: iteration 0, 0F0 on rank 0:" +
                   kDoNotFit);
  CHECK(watched.err.find(" bytes for activations do") != std::string::npos);
  CHECK(watched.err.find("memory of 1433600 bytes") != std::string::npos);
  const std::vector<ProcessInfo> workers = Descendants(agent.process().pid());
  CHECK(agent.process().Terminate(20'000'000'000).success());
  for (const ProcessInfo& worker : workers) {
    CHECK_FALSE(Exists(worker));
  }
}

TEST_CASE("numbers: a loss that is none fails the job at once, with iteration and stage") {
  const TempFolder folder = TestFolder();
  const std::string job = ChangedJob(folder, "learning_rate: 5.0e-3", "learning_rate: 1.0e15");
  const auto [sites, where] = GENERATE(table<std::string, std::string>({
      {"1", "worker north/0/0 (site north) failed: iteration 1, end on rank 0: the loss is "},
      {"3",
       "worker north/0/0 (site north) failed: iteration 1, end on rank 0: the activations that 0F0 made are not "
       "finite, and neither would the loss be"},
  }));
  const CommandResult result =
      RunCommand("geopipectl", {"playground", "--job", job, "--sites", sites, "--link", "latency=1ms,bandwidth=1Gbps",
                                "--output", folder.path().string()});
  CheckEnded(result, 1, "error: job mini FAILED: " + where,
             {"; lower training.learning_rate", "; no checkpoint was written: the job has no checkpoint.path"});
  CHECK(result.out.find("iteration  2/40") == std::string::npos);
}

}  // namespace
}  // namespace geopipe
