// A rehearsal of tensor and data parallelism, through the installed programs: sixteen modelled workers on eight nodes.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

using Changes = std::vector<std::pair<std::string, std::string>>;

// The example, made short: sixteen micro-batches of a few milliseconds.
std::string ShortJob(const TempFolder& folder, const Changes& more = {}) {
  std::string text = ReadFile(SourcePath("deploy/examples/grid.yaml"), 1 << 20).value();
  Changes changes = {{"iterations: 12", "iterations: 3"},
                     {"tokens_per_iteration: 16384", "tokens_per_iteration: 2048"},
                     {"sequence_length: [512]", "sequence_length: [64]"}};
  changes.insert(changes.end(), more.begin(), more.end());
  for (const auto& [from, to] : changes) {
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), from.size(), to);
  }
  const std::string path = folder.path() / "grid.yaml";
  REQUIRE(WriteFileAtomically(path, text).ok());
  return path;
}

std::vector<std::string> Arguments(const std::string& job, const TempFolder& folder, const std::string& backend,
                                   const std::string& topology = SourcePath("deploy/examples/two-sites.yaml")) {
  return {"playground", "--job", job,    "--topology", topology,     "--backend",
          backend,      "-o",    "json", "--output",   folder.path()};
}

// The ranks that a worker says it shapes its link to.
std::set<int32_t> ShapedPeers(const std::string& log) {
  const std::string mark = "LINK SHAPER ON: to rank ";
  std::set<int32_t> peers;
  for (size_t at = log.find(mark); at != std::string::npos; at = log.find(mark, at + 1)) {
    peers.insert(std::stoi(log.substr(at + mark.size())));
  }
  return peers;
}

TEST_CASE("tensor 2 x data 2 x 4 pipeline ranks over two sites are rehearsed by sixteen workers") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const CommandResult result = RunCommand("geopipectl", Arguments(ShortJob(folder), folder, "modelled"));
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  const Json report = Json::parse(result.out);
  CHECK(report["state"] == "COMPLETED");
  CHECK(report["iterations"].size() == 3);
  CHECK(report["plan"]["tensor"] == 2);
  CHECK(report["plan"]["data"] == 2);
  REQUIRE(report["plan"]["stages"].size() == 4);
  // The run is never faster than predicted; how much slower is the benchmark's concern.
  CHECK(report["measured"]["iteration_s"].get<double>() >= 0.97 * report["predicted"]["iteration_s"].get<double>());

  for (int32_t rank = 0; rank < 16; ++rank) {
    // Two nodes for the replicas of a stage, two stages for a site.
    const int32_t tensor = rank % 2;
    const int32_t data = rank / 2 % 2;
    const int32_t pipeline = rank / 4;
    const std::filesystem::path path = folder.path() / "grid.playground/logs" /
                                       fmt::format("{}-{}", pipeline < 2 ? "oslo" : "bergen", pipeline % 2 * 2 + data) /
                                       fmt::format("worker-{}.log", tensor);
    const absl::StatusOr<std::string> log = ReadFile(path, 1 << 20);
    INFO(path);
    REQUIRE(log.ok());
    INFO(*log);
    CHECK(log->find(fmt::format("prepared rank {} of epoch 1 ", rank)) != std::string::npos);
    std::set<int32_t> pipeline_peers;
    for (int32_t other = 0; other < 4; ++other) {
      if (other != pipeline) {
        pipeline_peers.insert(other * 4 + data * 2 + tensor);
      }
    }
    CHECK(ShapedPeers(*log) == pipeline_peers);
  }
}

TEST_CASE("nodes of a site that differ are rehearsed as groups, and the plan says site and node") {
  const TempFolder folder = *TempFolder::Create("geopipe-test-");
  const std::string topology = folder.path() / "topology.yaml";
  const std::string device = "memory: 16GiB, memory_bandwidth: 100GB/s, intra_node_bandwidth: 10GB/s";
  REQUIRE(WriteFileAtomically(topology,
                              "sites:\n"
                              "- name: oslo\n"
                              "  network: {bandwidth: 10Gbps, latency: 20us}\n"
                              "  node_groups:\n"
                              "  - {nodes: 1, devices_per_node: 4, device: {kind: fast, peak_flops: 2e12, " +
                                  device +
                                  "}}\n"
                                  "  - {nodes: 2, devices_per_node: 2, device: {kind: slow, peak_flops: "
                                  "1e12, " +
                                  device +
                                  "}}\n"
                                  "- {name: bergen, device: {kind: fast, peak_flops: 2e12, " +
                                  device +
                                  "}, nodes: 1, devices_per_node: 4}\n"
                                  "links: [{between: [bergen, oslo], latency: 5ms, bandwidth: 1Gbps}]\n")
              .ok());
  const std::string job = ShortJob(folder, {{"pipeline: 4", "pipeline: 3"}});
  const CommandResult result = RunCommand("geopipectl", Arguments(job, folder, "modelled", topology));
  INFO(result.err);
  INFO(result.out);
  REQUIRE(result.exit_status.success());
  const Json report = Json::parse(result.out);
  CHECK(report["state"] == "COMPLETED");
  REQUIRE(report["plan"]["stages"].size() == 3);
  std::set<std::string> places;
  for (const Json& stage : report["plan"]["stages"]) {
    places.insert(stage["site"].get<std::string>() + stage["nodes"].dump());
  }
  CHECK(places == std::set<std::string>{"oslo[0]", "oslo[1,2]", "bergen[0]"});
  CHECK(report["measured"]["iteration_s"].get<double>() >= 0.97 * report["predicted"]["iteration_s"].get<double>());
}

}  // namespace
}  // namespace geopipe
