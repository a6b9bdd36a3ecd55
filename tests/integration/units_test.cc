// Quantities without a unit, with a wrong one, or out of range, in every file and flag that people write: the programs
// say what, where and how to write it, and exit with 2.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"

namespace geopipe {
namespace {

struct Mistake {
  std::string from;
  std::string to;
  std::string place;
  std::string sentence;
};

constexpr const char* kTopology = "deploy/examples/three-regions.yaml";
constexpr const char* kCase = "tests/golden/cases/two-sites-20ms.yaml";

TEST_CASE("units and ranges: a job file") {
  const Mistake mistake = GENERATE(values<Mistake>({
      {"west]}", "west]}\n  replan: {drift: 15}", "job.yaml:30:19: spec.replan.drift",
       "'15' has no unit; write it like"},
      {"west]}", "west]}\n  replan: {drift: 15ms}", "job.yaml:30:19: spec.replan.drift", "the unknown unit 'ms'"},
      {"[32]", "[32]\n    time_budget: 10", "job.yaml:29:18: spec.search.time_budget", "'10' has no unit"},
      {"[32]", "[32]\n    time_budget: 10GB", "job.yaml:29:18: spec.search.time_budget", "the unknown unit 'GB'"},
      {"5.0e-3", "-1", "job.yaml:21:20: spec.training.learning_rate", "it must be above 0"},
      {"iterations: 40", "iterations: 0", "job.yaml:19:17: spec.training.iterations",
       "it must be from 1 to 1000000000"},
      {"grad_clip: 1.0", "grad_clip: 0", "job.yaml:24:16: spec.training.grad_clip", "it must be above 0"},
      {"layers: 6", "layers: 0", "job.yaml:9:24: spec.model.num_hidden_layers", "is 0"},
  }));
  const TempFolder folder = TestFolder();
  const std::string job = ChangedJob(folder, mistake.from, mistake.to);
  CheckEnded(RunCommand("geopipectl", {"plan", "-f", job, "--topology", SourcePath(kTopology)}), 2, "error: /",
             {mistake.place, mistake.sentence});
  CheckEnded(RunCommand("geopipectl", {"apply", "-f", job, "--server", "127.0.0.1:1"}), 2, "error: /",
             {mistake.place, mistake.sentence});
}

TEST_CASE("units and ranges: a topology file") {
  const Mistake mistake = GENERATE(values<Mistake>({
      {"latency: 3ms", "latency: 3", "topology.yaml:22:39: links[0].latency", "'3' has no unit; write it like 20ms"},
      {"latency: 3ms", "latency: 3Gbps", "topology.yaml:22:39: links[0].latency", "the unknown unit 'Gbps'"},
      {"bandwidth: 400Gbps", "bandwidth: 400", "topology.yaml:22:55: links[0].bandwidth", "'400' has no unit"},
      {"memory: 64GiB", "memory: 64", "topology.yaml:14:15: sites[0].device.memory", "write it like 64GiB"},
      {"memory: 64GiB", "memory: -64GiB", "topology.yaml:14:15: sites[0].device.memory", "is negative"},
      {"efficiency: 0.5", "efficiency: 50", "topology.yaml:18:19: sites[0].device.efficiency",
       "is 50; it must be above 0"},
      {"nodes: 3,", "nodes: 0,", "topology.yaml:20:5: sites[2]", "nodes is 0; it must be from 1"},
  }));
  const TempFolder folder = TestFolder();
  const std::string topology = ChangedCopy(folder, kTopology, "topology.yaml", mistake.from, mistake.to);
  CheckEnded(
      RunCommand("geopipectl", {"plan", "-f", SourcePath("deploy/examples/llama-2-13b.yaml"), "--topology", topology}),
      2, "error: /", {mistake.place, mistake.sentence});
}

TEST_CASE("units and ranges: a case file, whose numbers take no units") {
  const Mistake mistake = GENERATE(values<Mistake>({
      {"latency_s: 0.02", "latency_s: 20ms", "case.yaml:7:30: links[0].latency_s",
       "'20ms' has a unit and must be a plain number; write it like 20e-3"},
      {"forward_s: 0.01", "forward_s: -0.01", "case.yaml:3:12: forward_s", "is -0.01; it must be from 1e-09 to"},
      {"devices: 4", "devices: 0", "case.yaml:1:10: devices", "is 0; it must be from 1 to"},
      {"10000000000.0", "0", "links[0].bandwidth_Bps", "is 0; it must be above 0"},
  }));
  const TempFolder folder = TestFolder();
  const std::string path = ChangedCopy(folder, kCase, "case.yaml", mistake.from, mistake.to);
  CheckEnded(RunCommand("geopipectl", {"simulate", "-f", path}), 2, "error: /", {mistake.place, mistake.sentence});
}

TEST_CASE("units and ranges: the configuration of an agent") {
  const TempFolder folder = TestFolder();
  const std::string path = (folder.path() / "agent.yaml").string();
  const std::string head = "site: north\ncoordinator: 127.0.0.1:1\nstate_dir: " + (folder.path() / "state").string();
  const auto check = [&](const std::string& text, const std::vector<std::string>& more,
                         const std::vector<std::string>& words) {
    REQUIRE(WriteFileAtomically(path, head + "\n" + text).ok());
    std::vector<std::string> args{"--config", path};
    args.insert(args.end(), more.begin(), more.end());
    CheckEnded(RunCommand("geopipe-agent", args), 2, "geopipe-agent: ", words);
  };
  check("devices: {memory: 2}\n", {}, {"agent.yaml:4:19: devices.memory: '2' has no unit; write it like 64GiB"});
  check("devices: {memory: 2GiB, count: 0}\n", {}, {"agent.yaml:4:32: devices.count: is 0; it must be from 1 to 256"});
  check("devices: {memory: 2GiB}\nlinks: [{to: east, latency: 20, bandwidth: 1Gbps}]\n", {},
        {"agent.yaml:5:29: links[0].latency: '20' has no unit"});
  check("devices: {memory: 2GiB}\n", {"--set", "orphan_grace=20"}, {"--set orphan_grace=20: ", "'20' has no unit"});
  check("devices: {memory: 2GiB}\n", {"--set", "devices.count=0"},
        {"--set devices.count=0: devices.count: is 0; it must be from 1 to 256"});
  Command with_environment("geopipe-agent", {"--config", path}, {{"GEOPIPE_AGENT_ORPHAN_GRACE", "20"}});
  CheckEnded(with_environment.Finish(60'000'000'000), 2,
             "geopipe-agent: ", {"GEOPIPE_AGENT_ORPHAN_GRACE", "'20' has no unit"});
}

TEST_CASE("units and ranges: the configuration of the coordinator") {
  const auto [text, sentence] = GENERATE(table<std::string, std::string>({
      {"heartbeat: {interval: 5}", "coordinator.yaml:3:23: heartbeat.interval: '5' has no unit; write it like 20ms"},
      {"heartbeat: {interval: 5kB}", "coordinator.yaml:3:23: heartbeat.interval: '5kB' has the unknown unit 'kB'"},
      {"heartbeat: {suspect_after: 9s}",
       "coordinator.yaml:3:1: heartbeat.failed_after: is 5s; it must be longer than heartbeat.suspect_after, which is "
       "9s"},
      {"limits: {jobs: 0}", "coordinator.yaml:3:16: limits.jobs: is 0; it must be from 1 to 1000000"},
      {"metrics: 127.0.0.1", "coordinator.yaml:3:10: metrics is \"127.0.0.1\"; write it as host:port"},
  }));
  const TempFolder folder = TestFolder();
  const std::string path = (folder.path() / "coordinator.yaml").string();
  const std::string state = (folder.path() / "state").string();
  REQUIRE(WriteFileAtomically(path, "listen: 127.0.0.1:0\nstate_dir: " + state + "\n" + text + "\n").ok());
  CheckEnded(RunCommand("geopipe-coordinator", {"--config", path}), 2, "geopipe-coordinator: ", {sentence});
  CHECK_FALSE(std::filesystem::exists(state));
}

TEST_CASE("units and ranges: flags") {
  const auto [flag, value, sentence] = GENERATE(table<std::string, std::string, std::string>({
      {"--link", "latency=20,bandwidth=1Gbps", "--link latency: '20' has no unit; write it like 20ms"},
      {"--link", "latency=20ms,bandwidth=1", "--link bandwidth: '1' has no unit; write it like 400Gbps"},
      {"--link", "latency=20parsec,bandwidth=1Gbps", "--link latency: '20parsec' has the unknown unit 'parsec'"},
      {"--link", "latency=-1ms,bandwidth=1Gbps", "--link latency: '-1ms' is negative"},
      {"--link", "latency=20ms,bandwidth=0Gbps", "--link bandwidth: '0Gbps' is not a positive bandwidth"},
      {"--link", "latency=20ms", "--link latency=20ms: has no bandwidth; a link is given as latency=20ms,bandwidth"},
      {"--link", "bandwidth=1Gbps",
       "--link bandwidth=1Gbps: has no latency; a link is given as latency=20ms,bandwidth"},
      {"--link", "delay=20ms,bandwidth=1Gbps", "'delay=20ms' is unknown; a link is given as latency=20ms"},
      {"--sites", "0", "--sites 0: the playground holds 1 to 64 sites"},
      {"--sites", "three", "--sites: 'three' is not a whole number"},
      {"--iterations", "-3", "--iterations -3: give a positive number"},
  }));
  const std::string job = SourcePath("tests/golden/jobs/mini.yaml");
  CheckEnded(RunCommand("geopipectl", {"playground", "--job", job, flag, value}), 2, "error: ", {sentence});
  CheckEnded(RunCommand("geopipectl", {"get", "jobs", "--timeout", "5"}), 2, "error: --timeout: '5' has no unit", {});
}

}  // namespace
}  // namespace geopipe
